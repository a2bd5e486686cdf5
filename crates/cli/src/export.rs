//! `trace export`, `lab export`: tables for other tools, as files of Arrow's IPC format (Feather, version 2), which
//! polars, pandas, R and DuckDB read.

use crate::args::lab;
use crate::args::trace;
use crate::new_file::Target;
use crate::output::{Failure, Out, counted};
use arrow_array::builder::{ArrayBuilder, BooleanBuilder, Float64Builder, StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, StringArray, UInt8Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use varve::TraceEvent;
use varve_lab::experiment::{PointResult, Results};
use varve_lab::trace::{Reader, Record};

/// Rows of a batch: what lies in memory at a time.
const BATCH: usize = 1 << 16;

/// A table being written.
struct Table {
    path: String,
    schema: Arc<Schema>,
    writer: FileWriter<Target>,
    rows: u64,
}

impl Table {
    fn create(path: &Path, fields: Vec<Field>) -> Result<Table, Failure> {
        let shown = path.display().to_string();
        let schema = Arc::new(Schema::new(fields));
        let writer = FileWriter::try_new(Target::of(path)?, &schema).map_err(|e| failed(&shown, &e))?;
        Ok(Table { path: shown, schema, writer, rows: 0 })
    }

    fn write(&mut self, columns: Vec<ArrayRef>) -> Result<(), Failure> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| failed(&self.path, &e))?;
        self.rows += batch.num_rows() as u64;
        self.writer.write(&batch).map_err(|e| failed(&self.path, &e))
    }

    /// Writes the end of the file, and makes it durable.
    fn finish(self, out: Out) -> Result<(), Failure> {
        let Table { path, writer, rows, .. } = self;
        // `into_inner` writes the footer.
        writer.into_inner().map_err(|e| failed(&path, &e))?.finish()?;
        out.note(format!("{} written to {}", counted(rows, "row"), Target::shown(Path::new(&path))));
        Ok(())
    }
}

fn failed(path: &str, e: &ArrowError) -> Failure {
    match e {
        // A reader that went away has a status of its own.
        ArrowError::IoError(_, e) if path == "-" => std::io::Error::new(e.kind(), e.to_string()).into(),
        _ => Failure::Failed(format!("{path}: {e}")),
    }
}

fn column(builder: &mut impl ArrayBuilder) -> ArrayRef {
    builder.finish()
}

fn field(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, true)
}

/// What happens in traces; a column of numbers names them.
const OPS: [&str; 6] = ["read", "write", "create", "prefetch", "discard", "flush"];

/// Columns of a trace, one row for each record.
#[derive(Default)]
struct Trace {
    time: UInt64Builder,
    op: Vec<u8>,
    id: UInt64Builder,
    count: UInt64Builder,
    device: UInt32Builder,
    sector: UInt64Builder,
    bytes: UInt64Builder,
    keyspace: UInt64Builder,
    why: StringBuilder,
    new: BooleanBuilder,
    net: UInt32Builder,
    gross: UInt32Builder,
}

impl Trace {
    fn fields() -> Vec<Field> {
        let op = DataType::Dictionary(DataType::UInt8.into(), DataType::Utf8.into());
        vec![
            field("time_ns", DataType::UInt64),
            field("op", op),
            field("id", DataType::UInt64),
            field("count", DataType::UInt64),
            field("device", DataType::UInt32),
            field("sector", DataType::UInt64),
            field("bytes", DataType::UInt64),
            field("keyspace", DataType::UInt64),
            field("why", DataType::Utf8),
            field("new", DataType::Boolean),
            field("changed_net", DataType::UInt32),
            field("changed_gross", DataType::UInt32),
        ]
    }

    fn push(&mut self, record: &Record) {
        let op = |write: bool| u8::from(write);
        let (mut ids, mut block, mut flush) = (None, None, None);
        let (time, op) = match *record {
            Record::Block { time, write, device, sector, bytes } => {
                block = Some((device, sector, bytes));
                (Some(time), op(write))
            }
            Record::Run { first, count } => {
                ids = Some((first, count));
                (None, op(false))
            }
            Record::Object { time, write, id } => {
                ids = Some((id, 1));
                (time, op(write))
            }
            Record::Pool { time, event } => {
                let (op, page) = match event {
                    TraceEvent::Read(page) => (0, page),
                    TraceEvent::Write(page) => (1, page),
                    TraceEvent::Create(page) => (2, page),
                    TraceEvent::Prefetch(page) => (3, page),
                    TraceEvent::Discard(page) => (4, page),
                    TraceEvent::Flush(what) => {
                        flush = Some(what);
                        (5, what.page)
                    }
                };
                ids = Some((page.0, 1));
                (Some(time), op)
            }
        };
        self.time.append_option(time);
        self.op.push(op);
        self.id.append_option(ids.map(|ids| ids.0));
        self.count.append_option(ids.map(|ids| ids.1));
        self.device.append_option(block.map(|b| b.0));
        self.sector.append_option(block.map(|b| b.1));
        self.bytes.append_option(block.map(|b| b.2));
        self.keyspace.append_option(flush.and_then(|f| f.keyspace).map(|id| u64::from(id.0)));
        self.why.append_option(flush.map(|f| f.why.name()));
        self.new.append_option(flush.map(|f| f.new));
        let changed = flush.and_then(|f| f.changed);
        self.net.append_option(changed.map(|c| c.net));
        self.gross.append_option(changed.and_then(|c| c.gross));
    }

    /// The rows so far, which are not kept.
    fn take(&mut self, ops: &ArrayRef) -> Result<Vec<ArrayRef>, ArrowError> {
        let op = DictionaryArray::try_new(UInt8Array::from(std::mem::take(&mut self.op)), ops.clone())?;
        Ok(vec![
            column(&mut self.time),
            Arc::new(op),
            column(&mut self.id),
            column(&mut self.count),
            column(&mut self.device),
            column(&mut self.sector),
            column(&mut self.bytes),
            column(&mut self.keyspace),
            column(&mut self.why),
            column(&mut self.new),
            column(&mut self.net),
            column(&mut self.gross),
        ])
    }
}

/// Refuses to write a result over the trace that it is made of.
pub fn refuse_same_file(trace: &Path, out: &Path) -> Result<(), Failure> {
    match (std::fs::canonicalize(trace), std::fs::canonicalize(out)) {
        (Ok(from), Ok(to)) if from == to => Err(Failure::Usage(format!(
            "{} would be overwritten while it is read: name another file for the result",
            out.display()
        ))),
        _ => Ok(()),
    }
}

/// `trace export`
pub fn trace(out: Out, a: &trace::Export) -> Result<(), Failure> {
    refuse_same_file(&a.input.trace, &a.out)?;
    let mut reader = Reader::open(&a.input.trace, &a.input.read_options())?;
    let mut table = Table::create(&a.out, Trace::fields())?;
    let ops: ArrayRef = Arc::new(StringArray::from(OPS.to_vec()));
    let mut rows = Trace::default();
    let bar = out.progress("exporting", 0);
    loop {
        let record = reader.next_record()?;
        if let Some(record) = &record {
            bar.inc(1);
            rows.push(record);
        }
        if rows.op.len() == BATCH || record.is_none() {
            let columns = rows.take(&ops).map_err(|e| failed(&table.path, &e))?;
            table.write(columns)?;
        }
        if record.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    table.finish(out)
}

/// Columns of results: who a figure is of, and the figure.
struct Figures {
    experiment: StringBuilder,
    point: StringBuilder,
    seed: UInt64Builder,
    /// Variants and axes: a column each; null where an experiment has no such axis.
    axes: Vec<(String, StringBuilder)>,
    kind: StringBuilder,
    seconds: Float64Builder,
    figure: StringBuilder,
    value: Float64Builder,
    rows: usize,
}

impl Figures {
    fn new(results: &[Results]) -> Figures {
        let points = results.iter().flat_map(|results| &results.points);
        let names: BTreeSet<&String> = points.flat_map(|point| point.axes.iter().map(|axis| &axis.0)).collect();
        Figures {
            experiment: StringBuilder::new(),
            point: StringBuilder::new(),
            seed: UInt64Builder::new(),
            axes: names.into_iter().map(|name| (name.clone(), StringBuilder::new())).collect(),
            kind: StringBuilder::new(),
            seconds: Float64Builder::new(),
            figure: StringBuilder::new(),
            value: Float64Builder::new(),
            rows: 0,
        }
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields =
            vec![field("experiment", DataType::Utf8), field("point", DataType::Utf8), field("seed", DataType::UInt64)];
        // An axis may have the name of a column.
        fields.extend(self.axes.iter().map(|axis| field(&format!("axis:{}", axis.0), DataType::Utf8)));
        fields.push(field("kind", DataType::Utf8));
        fields.push(field("seconds", DataType::Float64));
        fields.push(field("figure", DataType::Utf8));
        fields.push(field("value", DataType::Float64));
        fields
    }

    fn push(&mut self, of: &PointResult, kind: Option<&str>, seconds: Option<f64>, figure: &str, value: f64) {
        self.experiment.append_value(&of.experiment);
        self.point.append_value(&of.point);
        self.seed.append_value(of.seed);
        for (name, values) in &mut self.axes {
            values.append_option(of.axes.iter().find(|axis| axis.0 == *name).map(|axis| &axis.1));
        }
        self.kind.append_option(kind);
        self.seconds.append_option(seconds);
        self.figure.append_value(figure);
        self.value.append_value(value);
        self.rows += 1;
    }

    /// The figures of a point: each of the whole run, and by kind of transaction; then those over time.
    fn point(&mut self, of: &PointResult) {
        of.metrics.iter().for_each(|(figure, value)| self.push(of, None, None, figure, *value));
        for (kind, figures) in &of.kinds {
            figures.iter().for_each(|(figure, value)| self.push(of, Some(kind), None, figure, *value));
        }
        let times = of.series.get("t").map_or(&[][..], |t| t);
        for (figure, values) in of.series.iter().filter(|series| series.0 != "t") {
            times.iter().zip(values).for_each(|(t, value)| self.push(of, None, Some(*t), figure, *value));
        }
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        self.rows = 0;
        let mut columns = vec![column(&mut self.experiment), column(&mut self.point), column(&mut self.seed)];
        columns.extend(self.axes.iter_mut().map(|axis| column(&mut axis.1)));
        columns.extend([column(&mut self.kind), column(&mut self.seconds)]);
        columns.extend([column(&mut self.figure), column(&mut self.value)]);
        columns
    }
}

/// `lab export`
pub fn results(out: Out, a: &lab::Export) -> Result<(), Failure> {
    let results: Vec<Results> = Results::all(&a.dir)?.into_iter().map(|found| found.1).collect();
    if results.is_empty() {
        return Err(Failure::Usage(format!("{}: no results (.jsonl) are in it", a.dir.display())));
    }
    let mut figures = Figures::new(&results);
    let mut table = Table::create(&a.out, figures.fields())?;
    for point in results.iter().flat_map(|results| &results.points) {
        figures.point(point);
        if figures.rows >= BATCH {
            table.write(figures.take())?;
        }
    }
    table.write(figures.take())?;
    table.finish(out)
}
