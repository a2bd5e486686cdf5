//! The view on screens of both sizes, drawn into memory: every figure is there whole, nothing overlaps.

use super::figures::{self, COLUMNS};
use super::{State, screen, view};
use crate::metrics::scrape::Scrape;
use std::time::Duration;
use varve_rt::Instant;

/// Metrics after `seconds`, every counter of them `rate` times as much; with everything that the view asks for.
fn scrape(seconds: u64, rate: f64, gauge: f64, tier: bool) -> Scrape {
    let mut text = String::from("varve_build_info{version=\"0\"} 1\n");
    let labels = |labels: &[&str]| -> Vec<String> {
        let of = |name: &str| match name {
            "kind" => vec!["leaf", "inner", "overflow", "space_map"],
            "device" if tier => vec!["data", "log", "fast"],
            "device" => vec!["data", "log"],
            "op" => vec!["read", "write", "flush"],
            "why" => vec!["replacement", "recoverability", "checkpoint"],
            "from" => vec!["fast", "slow"],
            "side" => vec!["host", "worker"],
            "direction" => vec!["to_worker", "from_worker"],
            _ => vec!["x"],
        };
        let mut sets = vec![String::new()];
        for name in labels {
            let more = |set: &String| of(name).into_iter().map(|v| format!("{set}{name}=\"{v}\",")).collect::<Vec<_>>();
            sets = sets.iter().flat_map(more).collect();
        }
        sets
    };
    for family in varve::metrics::FAMILIES.iter().filter(|f| f.name != "varve_build_info") {
        // Those with a tier have no LSM keyspace, and no worker.
        let others = ["varve_lsm", "varve_near"].iter().any(|name| family.name.starts_with(name));
        if family.name.starts_with("varve_tier") && !tier || others && tier {
            continue;
        }
        let value = if family.kind == varve::metrics::Kind::Counter { rate * seconds as f64 } else { gauge };
        for labels in labels(family.labels) {
            text += &format!("{}{{{labels}}} {value}\n", family.name);
        }
    }
    Scrape { at: Instant::from_nanos(seconds * 1_000_000_000), ..Scrape::parse(&text).expect("metrics") }
}

fn state(rate: f64, gauge: f64, tier: bool) -> State {
    let address = "127.0.0.1:9184".parse().expect("an address");
    let mut state = State::new(address, Duration::from_secs(1), scrape(1, rate, gauge, tier));
    (2..400).for_each(|second| state.take(Ok(scrape(second, rate, gauge, tier))));
    state
}

#[test]
fn words_are_explained_on_the_smallest_screen() {
    let mut state = state(1000.0, 1.0, false);
    state.help = true;
    let lines = screen(&state, view::LEAST.0, view::LEAST.1);
    let text = lines.concat();
    for word in ["committed:", "stall:", "log age:", "devices:", "back to the figures", "? explains, q ends"] {
        assert!(text.contains(word), "{word}: {lines:#?}");
    }
    assert!(!text.contains("hit ratio"), "the panels are away meanwhile: {lines:#?}");
}

/// The text between two borders, of the panel whose title is `title`, line by line.
fn panel(lines: &[String], title: &str) -> Vec<String> {
    let heading = format!("┌ {title} ");
    let (top, left) = lines
        .iter()
        .enumerate()
        .find_map(|(y, line)| Some((y, line[..line.find(&heading)?].chars().count())))
        .unwrap_or_else(|| panic!("no panel {title}"));
    let right = left + lines[top].chars().skip(left).position(|c| c == '┐').expect("a corner");
    let inside = |line: &String| -> Option<String> {
        let cells: Vec<char> = line.chars().collect();
        (cells[left] == '│').then(|| {
            assert_eq!(cells[right], '│', "the border of {title} is drawn over: {line}");
            cells[left + 1..right].iter().collect()
        })
    };
    lines[top + 1..].iter().map_while(inside).collect()
}

/// All that is to be seen is seen whole, each figure on a line of its own.
fn complete(state: &State, width: u16, height: u16) -> Vec<String> {
    let lines = screen(state, width, height);
    let whole = lines.join("\n");
    assert!(!whole.contains('…'), "something was cut:\n{whole}");
    let i = state.interval();
    let (last, more) = view::last_panels(&i, height);
    let panels = [
        ("transactions", Some(figures::transactions(&i))),
        ("pool", Some(figures::pool(&i))),
        ("hit ratio", Some(figures::hits(&i))),
        ("log", Some(figures::log(&i))),
        match figures::lsm(&i) {
            Some(lsm) => ("lsm", Some(lsm)),
            None => ("page writes", Some(figures::writes(&i))),
        },
        last.map_or(("tier", None), |(title, lines)| (title, Some(lines))),
    ];
    let more = more.into_iter().map(|(title, lines)| (title, Some(lines)));
    for (title, figures) in panels.into_iter().chain(more) {
        let shown = panel(&lines, title);
        let Some(figures) = figures else {
            assert_eq!(shown[0].trim(), "none");
            continue;
        };
        assert_eq!(shown.len(), figures.len(), "{title}:\n{whole}");
        for (line, (label, value)) in shown.iter().zip(&figures) {
            let rest = line.trim().strip_prefix(label).unwrap_or_else(|| panic!("{label}:\n{whole}"));
            assert!(rest.starts_with(' ') && rest.trim() == value, "{label} {value}:\n{whole}");
        }
    }
    let table = panel(&lines, "devices");
    let rows = figures::devices(&i);
    let headings = COLUMNS.map(|(name, _)| name.to_string());
    for (line, cells) in table.iter().zip(std::iter::once(&headings).chain(&rows)) {
        let want: Vec<&str> = cells.iter().flat_map(|cell| cell.split_whitespace()).collect();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), want, "\n{whole}");
    }
    assert!(table[rows.len() + 1..].iter().all(|line| line.trim().is_empty()));
    assert!(lines[0].starts_with("varve http://127.0.0.1:9184/metrics") && lines[0].contains("open for"), "{whole}");
    assert!(lines.last().expect("lines").trim_end().ends_with("q ends"), "{whole}");
    lines
}

#[test]
fn everything_fits_however_large_or_small_the_figures() {
    for tier in [false, true] {
        for (rate, gauge) in [(0.0, 0.0), (0.37, 0.4), (1.0, 1.0), (1234.5, 86_399.0), (9.9e8, 1e9)] {
            for (width, height) in [(80, 24), (200, 50), (81, 25), (133, 31)] {
                complete(&state(rate, gauge, tier), width, height);
            }
        }
    }
}

#[test]
fn host_and_worker_are_seen_where_there_is_one() {
    let seen = |lines: &[String], titles: &[&str]| {
        let text = lines.concat();
        titles.iter().filter(|title| text.contains(&format!("┌ {title} "))).count()
    };
    let near = ["near", "near: host", "near: worker"];
    let mut state = state(10.0, 0.4, false);
    // The smallest screen has room for one of them.
    let low = complete(&state, 80, 24);
    assert_eq!((seen(&low, &near), seen(&low, &["lsm", "lsm reads"])), (1, 1));
    let high = complete(&state, 80, view::whole_height(&state.interval()));
    assert_eq!((high.len(), seen(&high, &near), seen(&high, &["lsm", "lsm reads"])), (32, 3, 2));
    let whole = high.join("\n");
    for text in ["host's share ", " 40.0 %", "piped/piped", "40/40", "10/10", "fallbacks"] {
        assert!(whole.contains(text), "{text}:\n{whole}");
    }
    for scrape in [&mut state.before, &mut state.now] {
        scrape.samples.retain(|sample| !sample.name.starts_with("varve_near"));
    }
    let without = complete(&state, 80, 24);
    assert_eq!((seen(&without, &near), seen(&without, &["lsm", "lsm reads"])), (0, 2));
    assert_eq!(view::whole_height(&state.interval()), 24);
}

#[test]
fn levels_are_summed_up_by_keyspace() {
    let text = |n: u64| {
        let bytes = "varve_lsm_memtable_bytes{keyspace=\"a\"} 1\nvarve_lsm_bytes{keyspace=\"a\",level=\"0\"} 10\n\
                     varve_lsm_bytes{keyspace=\"a\",level=\"2\"} 90\nvarve_lsm_bytes{keyspace=\"b\",level=\"1\"} 10\n\
                     varve_lsm_bytes{keyspace=\"b\",level=\"6\"} 0\nvarve_lsm_segments{keyspace=\"a\",level=\"0\"} 3\n";
        let looks = [("filtered", 90 * n), ("found", 20 * n), ("false_positive", 10 * n)];
        let looks = looks.map(|(outcome, n)| format!("varve_lsm_looks_total{{outcome=\"{outcome}\"}} {n}\n"));
        format!("varve_build_info 1\n{bytes}{}varve_lsm_lookups_total {}\n", looks.concat(), 12 * n)
    };
    let [before, now] = [1, 2]
        .map(|n| Scrape { at: Instant::from_nanos(n * 1_000_000_000), ..Scrape::parse(&text(n)).expect("metrics") });
    let i = crate::metrics::interval::Interval { before: &before, now: &now };
    let lines = figures::lsm_reads(&i).expect("there is one").map(|(_, value)| value);
    assert_eq!(lines, ["2", "3", "75.0 %", "2.5", "1.1", "-"]);
}

#[test]
fn a_high_screen_has_charts_and_a_low_one_has_none() {
    let state = state(1234.0, 5.0, true);
    let charts = |lines: &[String]| lines.iter().flat_map(|line| line.matches(" most ")).count();
    assert_eq!(charts(&complete(&state, 80, 24)), 0);
    let lines = complete(&state, 200, 50);
    assert_eq!(charts(&lines), 4);
    let bars = panel(&lines, "committed/s");
    assert_eq!(bars.len(), 11);
    assert!(
        bars.iter().all(|line| line.chars().all(|c| c == '█')),
        "a steady rate fills the chart:\n{}",
        lines.join("\n")
    );
}

#[test]
fn a_small_screen_and_a_silent_process_are_told() {
    let mut state = state(1.0, 1.0, false);
    assert!(screen(&state, 79, 24)[0].starts_with("top needs 80 x 24, this is 79 x 24"));
    state.take(Err("no process serves metrics at http://127.0.0.1:9184/metrics (connection refused)".into()));
    let lines = screen(&state, 80, 24);
    let last = lines.last().expect("lines");
    assert!(last.starts_with("nothing for 0.0 s: no process serves metrics"), "{last}");
    assert!(last.contains('…') && last.trim_end().ends_with("q ends"), "{last}");
    state.take(Ok(scrape(400, 1.0, 1.0, false)));
    assert!(screen(&state, 80, 24).last().expect("lines").starts_with("every 1.0 s"));
}

#[test]
fn numbers_are_short() {
    for (n, text) in [(0.0, "0"), (0.04, "0.0"), (9.94, "9.9"), (9.96, "10"), (9999.4, "9999"), (9999.6, "10.0k")] {
        assert_eq!(figures::short(Some(n)), text);
    }
    for n in [1e5, 999_949.0, 999_951.0, 5e8, 999_951_000.0, 9.9e13] {
        assert!(figures::short(Some(n)).len() <= 6, "{n}");
    }
    for (s, text) in
        [(0.04, "0.0 s"), (59.9, "59 s"), (61.0, "1 min 1 s"), (3600.0, "1 h 0 min"), (90_000.0, "1 d 1 h")]
    {
        assert_eq!(figures::time(Some(s)), text);
    }
}
