//! Redoing log groups on pages without a pool: for restoring backups, and for salvaging what cannot be opened.

use crate::error::Result;
use crate::redo::{self, Record};
use varve_volume::{Lsn, PageId, page};

/// Groups that are redone together.
#[derive(Default)]
pub(super) struct Window {
    /// Start, end, body.
    groups: Vec<(Lsn, Lsn, Vec<u8>)>,
    bytes: usize,
}

/// What became of a page.
pub(super) enum Outcome {
    /// It had everything already.
    Unchanged,
    /// Its new bytes, not sealed.
    Changed(Vec<u8>),
    /// The log's changes do not fit it.
    Lost(String),
}

impl Window {
    pub fn push(&mut self, start: Lsn, end: Lsn, body: Vec<u8>) {
        self.bytes += body.len();
        self.groups.push((start, end, body));
    }

    /// Bytes of the groups.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Redoes every group, page after page in ascending order, and forgets them. `read` gives a page if it is whole;
    /// `done` is told what became of each page that a group changed.
    pub fn apply(
        &mut self,
        page_size: usize,
        mut read: impl FnMut(PageId) -> Result<Option<Vec<u8>>>,
        mut done: impl FnMut(PageId, Outcome) -> Result<()>,
    ) -> Result<()> {
        let groups = std::mem::take(&mut self.groups);
        self.bytes = 0;
        let mut records: Vec<(PageId, Lsn, Record<'_>)> = Vec::new();
        for (start, end, body) in &groups {
            for record in redo::decode(body, page_size, *start) {
                let record = record?;
                match &record {
                    Record::Extra(_) | Record::Index { .. } => {}
                    Record::Ops { page, .. } | Record::Image { page, .. } => records.push((*page, *end, record)),
                }
            }
        }
        // Stable: the records of a page stay in the order of the log.
        records.sort_by_key(|r| r.0);
        for of_page in records.chunk_by(|a, b| a.0 == b.0) {
            let id = of_page[0].0;
            done(id, redo_page(read(id)?, of_page, page_size)?)?;
        }
        Ok(())
    }
}

fn redo_page(stored: Option<Vec<u8>>, records: &[(PageId, Lsn, Record<'_>)], page_size: usize) -> Result<Outcome> {
    let (mut bytes, mut changed, mut lost) = (stored, false, None);
    for (id, end, record) in records {
        let at = bytes.as_deref().map(page::lsn);
        if at.is_some_and(|at| at >= *end) {
            continue;
        }
        match record {
            Record::Image { keyspace, head, hole, tail, .. } => {
                let mut new = vec![0; page_size];
                redo::apply_image(&mut new, head, *hole, tail);
                page::set_keyspace(&mut new, *keyspace);
                page::set_lsn(&mut new, *end);
                (bytes, changed, lost) = (Some(new), true, None);
            }
            Record::Ops { prev, ops, .. } => match &mut bytes {
                None => lost = Some("it is damaged or missing".to_string()),
                Some(_) if lost.is_some() => {}
                Some(page) if page::lsn(page) == *prev => {
                    redo::apply_ops(page, ops, *id, *end)?;
                    page::set_lsn(page, *end);
                    changed = true;
                }
                Some(page) => lost = Some(format!("it is at LSN {}, the log goes on from {prev}", page::lsn(page))),
            },
            Record::Extra(_) | Record::Index { .. } => unreachable!("not of a page"),
        }
    }
    Ok(match (lost, bytes) {
        (Some(why), _) => Outcome::Lost(why),
        (None, Some(bytes)) if changed => Outcome::Changed(bytes),
        _ => Outcome::Unchanged,
    })
}
