//! Options by name. A table of [`Setting`]s says once what there is to know of each option of a struct: name, what it
//! accepts, default, and a line of documentation. From the table come setting by text, text that reads back as the
//! same, the check of ranges, the errors that list what is accepted, the command line and the tables in the manual.

use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Text for an option that is left open.
const NONE: &str = "none";

/// A field of an option struct, to and from plain text. [`Accepts`] has checked the text before.
pub trait Field {
    /// Takes the value; false when the text is none of this type.
    fn put(&mut self, text: &str) -> bool;
    /// The value as text that [`Field::put`] takes.
    fn text(&self) -> String;
}

/// A type whose text is what [`Display`] writes and [`FromStr`] reads.
pub trait Plain: FromStr + Display {}

impl Plain for bool {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for usize {}
impl Plain for f64 {}
impl Plain for String {}

impl<T: Plain> Field for T {
    fn put(&mut self, text: &str) -> bool {
        text.parse().map(|value| *self = value).is_ok()
    }
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Field for Duration {
    fn put(&mut self, text: &str) -> bool {
        text.parse().map(|ns| *self = Duration::from_nanos(ns)).is_ok()
    }
    fn text(&self) -> String {
        self.as_nanos().to_string()
    }
}

impl<F: Field + Default> Field for Option<F> {
    fn put(&mut self, text: &str) -> bool {
        let mut value = F::default();
        *self = match text {
            NONE => None,
            _ if !value.put(text) => return false,
            _ => Some(value),
        };
        true
    }
    fn text(&self) -> String {
        self.as_ref().map_or(NONE.into(), Field::text)
    }
}

/// Which values an option takes.
pub enum Accepts {
    /// `true` or `false`.
    Flag,
    /// A whole number, and its unit.
    Number(RangeInclusive<u64>, &'static str),
    /// A number, and its unit.
    Real(RangeInclusive<f64>, &'static str),
    /// Bytes: a number, or one followed by K, M, G or T (powers of 1024).
    Bytes(RangeInclusive<u64>),
    /// A time: a number followed by us, ms, s or min.
    Time(RangeInclusive<Duration>),
    /// One of these names.
    Name(fn() -> Vec<&'static str>),
    /// Text of a form of its own: what it is in words, and whether a text is one.
    Form(&'static str, fn(&str) -> bool),
}

impl Accepts {
    /// The text as [`Field::put`] takes it, if it is accepted.
    fn read(&self, text: &str) -> Option<String> {
        let within =
            |n: Option<u64>, range: &RangeInclusive<u64>| n.filter(|n| range.contains(n)).map(|n| n.to_string());
        match self {
            Accepts::Flag => ["true", "false"].contains(&text).then(|| text.into()),
            Accepts::Number(range, _) => within(text.parse().ok(), range),
            Accepts::Real(range, _) => text.parse().ok().filter(|n: &f64| range.contains(n)).map(|n| n.to_string()),
            Accepts::Bytes(range) => within(bytes(text), range),
            Accepts::Time(range) => time(text).filter(|t| range.contains(t)).map(|t| t.as_nanos().to_string()),
            Accepts::Name(names) => names().contains(&text).then(|| text.into()),
            Accepts::Form(_, is) => is(text).then(|| text.into()),
        }
    }

    /// What [`Field::text`] gave, as a person writes it.
    fn show(&self, plain: String) -> String {
        match self {
            Accepts::Bytes(_) => plain.parse().map_or(plain, show_bytes),
            Accepts::Time(_) => plain.parse().map_or(plain, |ns| show_time(Duration::from_nanos(ns))),
            _ => plain,
        }
    }

    /// What is accepted, in words.
    pub fn words(&self) -> String {
        fn range<T: Display + PartialEq>(r: &RangeInclusive<T>, most: &T) -> String {
            if r.end() == most { format!("from {}", r.start()) } else { format!("from {} to {}", r.start(), r.end()) }
        }
        let unit = |unit: &'static str| if unit.is_empty() { "a number" } else { unit };
        match self {
            Accepts::Flag => "true or false".into(),
            Accepts::Number(r, of) => format!("{} {}", unit(of), range(r, &u64::MAX)),
            Accepts::Real(r, of) => format!("{} {}", unit(of), range(r, &f64::MAX)),
            Accepts::Bytes(r) => {
                let most = if *r.end() == u64::MAX { String::new() } else { format!(" to {}", show_bytes(*r.end())) };
                format!("bytes, or a number with K, M, G or T, from {}{most}", show_bytes(*r.start()))
            }
            Accepts::Time(r) => format!("a time with us, ms, s or min, from {}", show_time(*r.start())),
            Accepts::Name(names) => names().join(", "),
            Accepts::Form(words, _) => (*words).into(),
        }
    }
}

/// A size, if the text is one.
pub fn bytes(text: &str) -> Option<u64> {
    let units = [("k", 10), ("m", 20), ("g", 30), ("t", 40)];
    let text = text.to_ascii_lowercase();
    let (digits, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((&text, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn show_bytes(n: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = |shift: u32| n > 0 && n.is_multiple_of(1 << shift);
    units.iter().find(|(shift, _)| whole(*shift)).map_or(n.to_string(), |(shift, unit)| format!("{}{unit}", n >> shift))
}

/// A time, if the text is one.
pub fn time(text: &str) -> Option<Duration> {
    let units = [("min", 60.0), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units.iter().find_map(|(unit, of)| Some((text.strip_suffix(unit)?, of)))?;
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? * unit).ok()
}

fn show_time(t: Duration) -> String {
    let s = t.as_secs_f64();
    match s {
        _ if s >= 1.0 => format!("{s}s"),
        _ if s >= 1e-3 => format!("{}ms", s * 1e3),
        _ => format!("{}us", s * 1e6),
    }
}

/// One option of the struct `T`.
pub struct Setting<T: 'static> {
    /// Its name in text, files and errors.
    pub name: &'static str,
    /// Its name on the command line, if it is offered there.
    pub cli: Option<&'static str>,
    /// The values it takes.
    pub accepts: Accepts,
    /// What `none` means, if that is accepted besides.
    pub none: Option<&'static str>,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
    /// Where it is.
    pub field: fn(&mut T) -> &mut dyn Field,
}

impl<T: 'static> Setting<T> {
    /// An option that is not on the command line and has no `none`.
    pub const fn new(
        name: &'static str,
        accepts: Accepts,
        doc: &'static str,
        field: fn(&mut T) -> &mut dyn Field,
    ) -> Setting<T> {
        Setting { name, cli: None, accepts, none: None, doc, field }
    }

    /// The same, with a name on the command line.
    pub const fn cli(mut self, name: &'static str) -> Setting<T> {
        self.cli = Some(name);
        self
    }

    /// The same, which may be left open: what `none` means.
    pub const fn or_none(mut self, meaning: &'static str) -> Setting<T> {
        self.none = Some(meaning);
        self
    }
}

impl<T: Clone + Default> Setting<T> {
    /// What is accepted, in words, `none` included.
    pub fn accepted(&self) -> String {
        let words = self.accepts.words();
        self.none.map_or(words.clone(), |none| format!("{words}; or none: {none}"))
    }

    /// The value in `of` as [`Field::text`] gives it: bytes and nanoseconds as numbers.
    pub fn plain(&self, of: &T) -> String {
        (self.field)(&mut of.clone()).text()
    }

    /// The value in `of`, as text; nothing when it is the default.
    pub fn chosen(&self, of: &T) -> Option<String> {
        let plain = self.plain(of);
        (plain != self.plain(&T::default())).then(|| self.accepts.show(plain))
    }

    /// The value in `of`, as text.
    pub fn value(&self, of: &T) -> String {
        self.accepts.show(self.plain(of))
    }

    /// The default in words.
    pub fn default(&self) -> String {
        let text = self.value(&T::default());
        self.none.filter(|_| text == NONE).map_or(text, Into::into)
    }

    /// Takes `text` as the value. The error says what is accepted.
    pub fn set(&self, of: &mut T, text: &str) -> Result<(), String> {
        let read = match text {
            NONE if self.none.is_some() => Some(NONE.to_string()),
            _ => self.accepts.read(text),
        };
        match read {
            Some(plain) if (self.field)(of).put(&plain) => Ok(()),
            _ => Err(format!("{} = {text:?} is not accepted: give {}", self.name, self.accepted())),
        }
    }
}

/// Every option of a struct.
pub struct Table<T: 'static> {
    /// What these are options of, for errors: `pool`.
    pub of: &'static str,
    /// One line each.
    pub settings: &'static [Setting<T>],
}

impl<T: Clone + Default> Table<T> {
    /// The option of this name. The error lists what there is.
    pub fn find(&self, name: &str) -> Result<&'static Setting<T>, String> {
        self.settings.iter().find(|s| s.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.settings.iter().map(|s| s.name).collect();
            format!("no {} option {name:?}; there are: {}", self.of, names.join(", "))
        })
    }

    /// Sets one option.
    pub fn set(&self, of: &mut T, name: &str, text: &str) -> Result<(), String> {
        self.find(name)?.set(of, text)
    }

    /// Sets options given as `name=value,name=value`. What comes first and has no name is the value of `first`; what
    /// has none later belongs to the value before it, which has commas.
    pub fn parse(&self, of: &mut T, text: &str, first: &str) -> Result<(), String> {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match (part.split_once('='), pairs.last_mut()) {
                (Some((name, value)), _) => pairs.push((name.trim(), value.trim().into())),
                (None, Some((_, value))) => *value = format!("{value},{part}"),
                (None, None) => pairs.push((first, part.into())),
            }
        }
        pairs.iter().try_for_each(|(name, value)| self.set(of, name, value))
    }

    /// The options that are not at their defaults, as [`Table::parse`] takes them.
    pub fn text(&self, of: &T) -> String {
        let chosen = self.settings.iter().filter_map(|s| Some(format!("{}={}", s.name, s.chosen(of)?)));
        chosen.collect::<Vec<_>>().join(",")
    }

    /// Refuses what no text could have set.
    pub fn check(&self, of: &T) -> Result<(), String> {
        self.settings.iter().try_for_each(|s| s.set(&mut of.clone(), &s.value(of)))
    }

    /// The table as Markdown, a row for each option.
    pub fn markdown(&self) -> String {
        let mut out = String::from("| option | default | accepts | what it does |\n|---|---|---|---|\n");
        for s in self.settings {
            // What none means is the default then, which is told of.
            let none = s.none.map_or(String::new(), |none| {
                if s.default() == none { "; or none".into() } else { format!("; or none: {none}") }
            });
            writeln!(out, "| `{}` | {} | {}{none} | {} |", s.name, s.default(), s.accepts.words(), s.doc)
                .expect("a string");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default, Debug, PartialEq)]
    struct Few {
        depth: Option<usize>,
        on: bool,
        share: f64,
        size: u64,
        wait: Duration,
        kind: Option<String>,
    }

    fn few() -> Table<Few> {
        let line = |name, accepts, none, field| Setting { none, ..Setting::new(name, accepts, "", field) };
        let settings = Box::leak(Box::new([
            line("depth", Accepts::Number(1..=64, "pages"), Some("by size"), |f: &mut Few| &mut f.depth),
            line("on", Accepts::Flag, None, |f| &mut f.on),
            line("share", Accepts::Real(0.0..=1.0, ""), None, |f| &mut f.share),
            line("size", Accepts::Bytes(0..=1 << 40), None, |f| &mut f.size),
            line("wait", Accepts::Time(Duration::ZERO..=Duration::MAX), None, |f| &mut f.wait),
            line("kind", Accepts::Name(|| vec!["a", "b"]), Some("the first"), |f| &mut f.kind),
        ]));
        Table { of: "few", settings }
    }

    #[test]
    fn text_goes_both_ways() {
        for text in ["", "depth=3", "on=true,share=0.25", "size=12K,wait=1.5s", "size=1000,wait=20us,kind=b"] {
            let mut few_ = Few::default();
            few().parse(&mut few_, text, "kind").unwrap();
            assert_eq!(few().text(&few_), text);
            few().check(&few_).unwrap();
        }
        let mut short = Few { depth: Some(3), ..Few::default() };
        few().parse(&mut short, " b , depth = none", "kind").unwrap();
        assert_eq!(short, Few { kind: Some("b".into()), ..Few::default() });
    }

    #[test]
    fn errors_say_what_is_accepted() {
        for (text, says) in [
            ("dept=3", "no few option \"dept\"; there are: depth, on, share, size, wait, kind"),
            ("depth=65", "depth = \"65\" is not accepted: give pages from 1 to 64; or none: by size"),
            ("on=yes", "true or false"),
            ("on=none", "true or false"),
            ("share=1.5", "from 0 to 1"),
            ("share=nan", "from 0 to 1"),
            ("size=12X", "K, M, G or T"),
            ("wait=12", "us, ms, s or min"),
            ("wait=-1s", "us, ms, s or min"),
            ("kind=c", "give a, b; or none: the first"),
            ("c", "give a, b; or none"),
            ("on=true,c", "on = \"true,c\" is not"),
        ] {
            let error = few().parse(&mut Few::default(), text, "kind").unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let error = few().check(&Few { depth: Some(0), ..Few::default() }).unwrap_err();
        assert!(error.starts_with("depth = \"0\""), "{error}");
    }
}
