//! `top`: a live view of a process that serves its metrics.
//!
//! A thread reads the metrics at equal distances and hands them over; the main thread draws what it has and listens to
//! the keyboard, so that a process that does not answer holds up nothing.

mod figures;
mod view;

#[cfg(test)]
mod tests;

use crate::args::top::Top;
use crate::metrics::scrape::Scrape;
use crate::metrics::{Address, Source};
use crate::output::{Failure, Out, say};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;
use varve_rt::channel::{Receiver, Sender, unbounded};
use varve_rt::{Instant, now};

/// How often the keyboard is looked at.
const KEYS: Duration = Duration::from_millis(50);
/// Intervals that the charts remember.
const MEMORY: usize = 512;

/// What the view shows.
struct State {
    address: Address,
    every: Duration,
    before: Scrape,
    now: Scrape,
    history: History,
    /// Since when, and why, nothing comes any more.
    silent: Option<(Instant, String)>,
    /// Words are explained in the place of the figures.
    help: bool,
}

/// Rates of past intervals, the newest last.
#[derive(Default)]
struct History {
    transactions: VecDeque<u64>,
    operations: VecDeque<u64>,
    log_bytes: VecDeque<u64>,
    misses: VecDeque<u64>,
}

impl State {
    fn new(address: Address, every: Duration, first: Scrape) -> State {
        State {
            address,
            every,
            before: first.clone(),
            now: first,
            history: History::default(),
            silent: None,
            help: false,
        }
    }

    /// A reading, or why there is none.
    fn take(&mut self, reading: Result<Scrape, String>) {
        match reading {
            Ok(scrape) => {
                self.before = std::mem::replace(&mut self.now, scrape);
                self.silent = None;
                let rates = figures::charted(&self.interval());
                let h = &mut self.history;
                let series = [&mut h.transactions, &mut h.operations, &mut h.log_bytes, &mut h.misses];
                for (series, rate) in series.into_iter().zip(rates) {
                    series.push_back(rate as u64);
                    if series.len() > MEMORY {
                        series.pop_front();
                    }
                }
            }
            Err(why) => {
                let since = self.silent.take().map_or_else(now, |(since, _)| since);
                self.silent = Some((since, why));
            }
        }
    }
}

pub fn run(out: Out, a: &Top) -> Result<(), Failure> {
    if a.once && !out.json {
        return once(a);
    }
    if out.json || !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(format!(
            "top draws on a terminal: for one view as text use `--once`, for lines or JSON `varve stat http://{} \
             --watch SECONDS`",
            a.address.host()
        )));
    }
    let source = Source::Remote(a.address.clone());
    let mut state = State::new(a.address.clone(), a.every, source.scrape()?);
    let (sender, readings) = unbounded();
    let every = a.every;
    varve_rt::spawn_daemon("readings", move || read(&source, every, &sender));
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, &mut state, &readings);
    ratatui::try_restore()?;
    Ok(result?)
}

/// Prints the view of one interval on the smallest screen that shows all panels.
fn once(a: &Top) -> Result<(), Failure> {
    let source = Source::Remote(a.address.clone());
    let mut state = State::new(a.address.clone(), a.every, source.scrape()?);
    varve_rt::sleep(a.every);
    state.take(Ok(source.scrape()?));
    for line in screen(&state, view::LEAST.0, view::whole_height(&state.interval())) {
        say!("{}", line.trim_end())?;
    }
    Ok(())
}

/// The lines of a screen, drawn into memory.
fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| view::draw(frame, state));
    let buffer = terminal.backend().buffer();
    (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect()).collect()
}

/// Reads the metrics until nobody wants them.
fn read(source: &Source, every: Duration, sender: &Sender<Result<Scrape, String>>) {
    let mut due = now() + every;
    loop {
        varve_rt::sleep(due - now());
        if sender.send(source.scrape().map_err(|e| e.to_string())).is_err() {
            return;
        }
        due = (due + every).max(now());
    }
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    readings: &Receiver<Result<Scrape, String>>,
) -> std::io::Result<()> {
    terminal.draw(|frame| view::draw(frame, state))?;
    loop {
        let mut changed = false;
        if event::poll(KEYS)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                    if key.code == KeyCode::Char('?') {
                        state.help = !state.help;
                        changed = true;
                    }
                }
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        while let Ok(reading) = readings.try_recv() {
            state.take(reading);
            changed = true;
        }
        if changed {
            terminal.draw(|frame| view::draw(frame, state))?;
        }
    }
}
