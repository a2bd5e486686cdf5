//! Tables of the report: how often each pair of things met. Pure.

use serde::Serialize;

/// Counts by row and column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: &'static str,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows and their counts; none where a pair cannot meet.
    pub rows: Vec<(String, Vec<Option<u64>>)>,
}

impl Table {
    /// Pairs that never met though they can.
    pub fn empty_cells(&self) -> Vec<String> {
        let named = |(row, counts): &(String, Vec<Option<u64>>)| -> Vec<String> {
            let zeros = self.columns.iter().zip(counts).filter(|(_, n)| **n == Some(0));
            zeros.map(|(column, _)| format!("{}: {row}, {column}", self.title)).collect()
        };
        self.rows.iter().flat_map(named).collect()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(self.title.len());
        let widths: Vec<usize> = self.columns.iter().map(|c| c.len().max(6) + 2).collect();
        write!(f, "{:<first$}", self.title)?;
        for (column, width) in self.columns.iter().zip(&widths) {
            write!(f, "{column:>width$}")?;
        }
        for (name, counts) in &self.rows {
            write!(f, "\n{name:<first$}")?;
            for (count, width) in counts.iter().zip(&widths) {
                let text = count.map_or("-".to_string(), |n| n.to_string());
                write!(f, "{text:>width$}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_can_be_and_is_zero_is_told() {
        let rows = vec![("read".to_string(), vec![Some(3), None]), ("write".to_string(), vec![Some(0), Some(1)])];
        let table = Table { title: "faults", columns: vec!["EIO".into(), "ENOSPC".into()], rows };
        assert_eq!(table.empty_cells(), ["faults: write, EIO"]);
        assert!(table.to_string().contains("read         3       -"), "{table}");
    }
}
