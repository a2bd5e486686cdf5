//! `trace`: recording, looking at and converting traces.

use crate::args::replay::Input;
use crate::args::trace::{Command, Convert, Record};
use crate::export::refuse_same_file;
use crate::new_file::Target;
use crate::output::{Failure, Out, Stdout, about, bytes, counted, say, table};
use crate::updates::{self, Row};
use crate::{bench, replay};
use serde_json::json;
use varve::{KeyspaceId, PageId, TraceEvent};
use varve_lab::replay::{Objects, Shape};
use varve_lab::trace::compact::Writer;
use varve_lab::trace::{Format, Reader};

pub fn run(out: Out, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Record(a) => record(out, a),
        Command::Info(a) => info(out, a),
        Command::Convert(a) => convert(out, a),
        Command::Export(a) => crate::export::trace(out, a),
    }
}

/// `trace record --out FILE tpcc ..` is `bench tpcc .. --trace FILE`.
fn record(out: Out, a: &Record) -> Result<(), Failure> {
    if a.workload.trace().is_some() {
        return Err(Failure::Usage("--out names the file for the trace: leave --trace out".into()));
    }
    bench::run_traced(out, &a.workload, Some(&a.out))
}

fn info(out: Out, a: &Input) -> Result<(), Failure> {
    let (refs, format) = replay::read(out, a)?;
    let seconds = refs.span.map(|(first, last)| (last - first) as f64 / 1e9);
    let (flushes, known, changed) = refs.flushes;
    let name = |id: &KeyspaceId| refs.about.keyspaces.get(id).cloned().unwrap_or_else(|| format!("({})", id.0));
    let updates: Vec<Row> = refs.updates.iter().map(|(id, sizes)| Row::of(&name(id), sizes)).collect();
    if out.json {
        let changed = (known > 0).then(|| changed as f64 / known as f64);
        say!(
            "{}",
            json!({ "format": format, "records": refs.records, "writes": refs.writes, "references": refs.len(),
                "pages": refs.pages(), "seconds": seconds, "flushes": flushes, "changed_bytes_per_flush": changed,
                "updates": updates::as_json(&updates) })
        )?;
        return Ok(());
    }
    let mut rows = vec![
        ("format".to_string(), format.to_string()),
        ("records".into(), refs.records.to_string()),
        ("writes".into(), refs.writes.to_string()),
        ("references".into(), refs.len().to_string()),
        ("distinct pages".into(), refs.pages().to_string()),
    ];
    rows.extend(seconds.map(|s| ("seconds".into(), format!("{s:.3}"))));
    if flushes > 0 {
        rows.push(("flushes".into(), flushes.to_string()));
        let mean = changed.checked_div(known).map_or("not known".into(), bytes);
        rows.push(("changed by a flush".into(), format!("{mean} (mean of {known})")));
    }
    if refs.about.pages > 0 {
        rows.push(("pages of the database".into(), refs.about.pages.to_string()));
    }
    table(&mut Stdout, &rows)?;
    if updates.is_empty() { Ok(()) } else { updates::print(out, &updates) }
}

fn convert(out: Out, a: &Convert) -> Result<(), Failure> {
    refuse_same_file(&a.input.trace, &a.out)?;
    let mut reader = Reader::open(&a.input.trace, &a.input.read_options())?;
    let shape = a.input.shape();
    let vscsi = matches!(reader.format(), Format::Vscsi1 | Format::Vscsi2);
    let start = shape.start_sector.unwrap_or(if vscsi { 63 } else { 0 });
    let io = |e: std::io::Error| about(&a.out, &e);
    let page_size = reader.page_size().unwrap_or(shape.page_size);
    let mut writer = Writer::new(Target::of(&a.out)?, page_size).map_err(io)?;
    let bar = out.progress("converting", 0);
    while let Some(record) = reader.next_record()? {
        bar.inc(1);
        events(&record, &shape, start, &mut |time, event| writer.push(time, event)).map_err(io)?;
    }
    bar.finish_and_clear();
    writer.about(&reader.about()).map_err(io)?;
    let total = writer.total();
    writer.finish().map_err(io)?.finish()?;
    out.note(format!("{} written to {}", counted(total, "event"), Target::shown(&a.out)));
    Ok(())
}

/// Bits of a page's number below those of its device.
const DEVICE: u32 = 48;

/// What a record is as events of our own format. A device's number goes into the top bits of the page's.
fn events(
    record: &varve_lab::trace::Record,
    shape: &Shape,
    start: u64,
    push: &mut dyn FnMut(u64, TraceEvent) -> std::io::Result<()>,
) -> std::io::Result<()> {
    use varve_lab::trace::Record as R;
    let access = |write, page| if write { TraceEvent::Write(PageId(page)) } else { TraceEvent::Read(PageId(page)) };
    match *record {
        R::Pool { time, event } => push(time, event),
        R::Object { time, write, id } => push(time.unwrap_or(0), access(write, id)),
        R::Run { first, count } => {
            let count = if shape.objects == Objects::Starts { 1 } else { count };
            (first..first + count).try_for_each(|page| push(0, access(false, page)))
        }
        R::Block { time, write, device, sector, bytes } => {
            let of_device = |page: u64| page ^ (u64::from(device) << DEVICE);
            if shape.objects == Objects::Starts {
                return push(time, access(write, of_device(sector)));
            }
            let (first, last) = shape.pages(sector, bytes, start).unwrap_or((0, -1));
            (first..=last).try_for_each(|page| push(time, access(write, of_device(page as u64))))
        }
    }
}
