//! Where on the screen the figures are.
//!
//! The smallest screen is 80 by 24: a line of title, two rows of three panels with the table of devices between them, a
//! line of status. What is higher than that shows charts below.

use super::figures::{self, COLUMNS, Line};
use super::{History, State};
use crate::metrics::interval::Interval;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};
use std::collections::VecDeque;

/// The smallest screen.
pub(super) const LEAST: (u16, u16) = (80, 24);
/// Lines of a panel, its border included.
const PANEL: u16 = 8;
/// From so many lines on there is a row of panels more, where there is something to be shown there.
const MORE: u16 = LEAST.1 + PANEL;
/// Lines of the table of devices: border, heading, three devices.
const DEVICES: u16 = 6;
/// Lines of a chart that is worth drawing, its border included.
const CHART: u16 = 5;
/// Widest text of a panel: beyond that label and value are too far apart to be read together.
const PANEL_TEXT: u16 = 36;

const QUIET: Style = Style::new().fg(Color::DarkGray);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("top needs {} x {}, this is {} x {}", LEAST.0, LEAST.1, area.width, area.height);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let i = state.interval();
    let (last, more) = last_panels(&i, area.height);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(PANEL),
        Constraint::Length(DEVICES),
        Constraint::Length(PANEL),
        Constraint::Length(if more.is_empty() { 0 } else { PANEL }),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [title, upper, devices, lower, row, charts, status] = Layout::vertical(rows).areas(area);
    draw_title(frame, title, state);
    draw_status(frame, status, state);
    if state.help {
        draw_help(frame, upper.union(charts));
        return;
    }
    let [a, b, c] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas(upper);
    panel(frame, a, "transactions", &figures::transactions(&i));
    panel(frame, b, "pool", &figures::pool(&i));
    panel(frame, c, "hit ratio", &figures::hits(&i));
    table(frame, devices, &figures::devices(&i));
    let [a, b, c] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas(lower);
    panel(frame, a, "log", &figures::log(&i));
    match figures::lsm(&i) {
        Some(lines) => panel(frame, b, "lsm", &lines),
        None => panel(frame, b, "page writes", &figures::writes(&i)),
    }
    match last {
        Some((title, lines)) => panel(frame, c, title, &lines),
        None => panel(frame, c, "tier", &[("none", String::new())]),
    }
    let places = Layout::horizontal([Constraint::Ratio(1, 3); 3]).split(row);
    places.iter().zip(&more).for_each(|(place, (title, lines))| panel(frame, *place, title, lines));
    draw_charts(frame, charts, &state.history);
}

/// The height at which all panels are seen.
pub(super) fn whole_height(i: &Interval<'_>) -> u16 {
    if last_panels(i, MORE).1.is_empty() { LEAST.1 } else { MORE }
}

/// Title and lines.
pub(super) type Panel = (&'static str, [Line; 6]);

/// What is in the last place of the lower row on a screen of so many lines, and in the row below it. A low screen has
/// no such row: what matters most is in the last place then.
pub(super) fn last_panels(i: &Interval<'_>, height: u16) -> (Option<Panel>, Vec<Panel>) {
    let near = figures::near(i).map(|near| ["near", "near: host", "near: worker"].into_iter().zip(near));
    let near: Vec<Panel> = near.into_iter().flatten().collect();
    let tier = figures::tier(i).map(|lines| ("tier", lines));
    let reads = figures::lsm_reads(i).map(|lines| ("lsm reads", lines));
    if height < MORE {
        return (tier.or(near.first().cloned()).or(reads), Vec::new());
    }
    let mut panels = tier.into_iter().chain(reads).chain(near);
    (panels.next(), panels.collect())
}

/// What the words mean.
const HELP: [&str; 11] = [
    "committed: transactions that took effect; retried: those that gave way to another and ran again",
    "hit: a page was in memory; miss: it had to be read; stall: somebody waited for an empty frame",
    "dirty: pages of the cache that are newer than on the device; cleaned in the background",
    "log age: what recovery would have to read; a checkpoint makes it shorter",
    "devices: requests and bytes a second, mean time of a request, how much of the time it was busy",
    "page writes: by the reason for which the page was written (docs/metrics.md)",
    "tier: a fast device over a slow one; hit: reads that the fast one served",
    "lsm: times: amplification; debt: what merges have before them",
    "near: host/worker; piped: reads, merges and writes at the same time",
    "all figures are of the last interval, unless they are sizes",
    "q, Esc: end    ?: back to the figures",
];

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let block = frame_of("what is what");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    for (n, line) in HELP.iter().enumerate().take(inner.height as usize) {
        let place = Rect { x: inner.x + 1, y: inner.y + n as u16, width: inner.width.saturating_sub(2), height: 1 };
        frame.render_widget(Text::raw(cut(line, place.width)), place);
    }
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let open = figures::time(state.now.sum("varve_open_seconds", &[]));
    let left = Text::from(vec![Span::styled("varve ", STRONG), Span::raw(state.address.to_string())]);
    let right = format!("open for {open}");
    let [l, r] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(right.len() as u16)]).areas(area);
    frame.render_widget(left, l);
    frame.render_widget(Text::from(right), r);
}

fn draw_status(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let keys = "? explains, q ends";
    let [l, r] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(keys.len() as u16 + 1)]).areas(area);
    let text = match &state.silent {
        Some((since, why)) => {
            let what = format!("nothing for {}: {why}", figures::time(Some(since.elapsed().as_secs_f64())));
            Span::styled(cut(&what, l.width), Style::new().fg(Color::Red))
        }
        None if state.is_first() => Span::styled("waiting for the second reading", QUIET),
        None => Span::styled(format!("every {:.1} s", state.every.as_secs_f64()), QUIET),
    };
    frame.render_widget(text, l);
    frame.render_widget(Text::styled(keys, QUIET).alignment(Alignment::Right), r);
}

/// `text` in at most `width` characters; an ellipsis says that some are missing.
fn cut(text: &str, width: u16) -> String {
    let width = width as usize;
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn frame_of(title: &str) -> Block<'_> {
    Block::bordered().border_style(QUIET).title(Span::styled(format!(" {title} "), STRONG))
}

fn panel(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[Line]) {
    let block = frame_of(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let width = inner.width.saturating_sub(2).min(PANEL_TEXT);
    for (n, (label, value)) in lines.iter().enumerate().take(inner.height as usize) {
        let room = (width as usize).saturating_sub(label.chars().count() + 1);
        let value = cut(value, room as u16);
        let line = Text::from(vec![Span::raw(*label), Span::styled(format!(" {value:>room$}"), STRONG)]);
        frame.render_widget(line, Rect { x: inner.x + 1, y: inner.y + n as u16, width, height: 1 });
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, rows: &[[String; COLUMNS.len()]]) {
    let block = frame_of("devices");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let headings = COLUMNS.map(|(name, _)| name.to_string());
    let lines = std::iter::once((&headings, QUIET)).chain(rows.iter().map(|row| (row, STRONG)));
    // What a wider screen has more is shared out between the columns.
    let least: u16 = COLUMNS.iter().map(|(_, width)| width).sum();
    let gap = ((inner.width - least) / COLUMNS.len() as u16).clamp(0, 8);
    for (y, (cells, style)) in lines.enumerate().take(inner.height as usize) {
        let mut x = inner.x;
        for (n, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
            let place = Rect { x, y: inner.y + y as u16, width: width + gap, height: 1 };
            let side = if n == 0 { Alignment::Left } else { Alignment::Right };
            let cell = format!("{}{}", if n == 0 { " " } else { "" }, cut(cell, width - 1));
            frame.render_widget(Text::styled(cell, style).alignment(side), place);
            x += width + gap;
        }
    }
}

fn draw_charts(frame: &mut Frame<'_>, area: Rect, history: &History) {
    if area.height < CHART {
        return;
    }
    let charts = [
        ("committed/s", &history.transactions, false),
        ("device operations/s", &history.operations, false),
        ("log written/s", &history.log_bytes, true),
        ("pages read/s", &history.misses, false),
    ];
    // Two rows of two where there is room, else one row.
    let across = if area.height >= 2 * CHART { 2 } else { 4 };
    let rows = Layout::vertical(vec![Constraint::Fill(1); charts.len() / across]).split(area);
    for (row, charts) in rows.iter().zip(charts.chunks(across)) {
        let places = Layout::horizontal(vec![Constraint::Fill(1); across]).split(*row);
        for (place, (title, series, sizes)) in places.iter().zip(charts) {
            chart(frame, *place, title, series, *sizes);
        }
    }
}

fn chart(frame: &mut Frame<'_>, area: Rect, title: &str, series: &VecDeque<u64>, sizes: bool) {
    let inner = Block::bordered().inner(area);
    let shown: Vec<u64> = series.iter().rev().take(inner.width as usize).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let most = if sizes { crate::output::bytes(most) } else { figures::short(Some(most as f64)) };
    let block = frame_of(title).title(Text::styled(format!(" most {most} "), QUIET).alignment(Alignment::Right));
    frame.render_widget(Sparkline::default().block(block).data(shown).style(Style::new().fg(Color::Cyan)), area);
}
