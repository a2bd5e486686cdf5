//! Options of the engine as arguments, made from its tables: names, help, what is accepted, defaults.

use crate::output::Failure;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use std::marker::PhantomData;
use varve::setting::{Accepts, Setting, Table};
use varve::{POOL_OPTIONS, PoolOptions, TIER_OPTIONS, TierOptions};

/// The argument for an option. What it accepts is checked with the others, so that all errors read alike.
fn arg<T: Clone + Default>(setting: &Setting<T>, long: &'static str, heading: &'static str) -> Arg {
    let doc = setting.doc.trim_end_matches('.');
    let values = match &setting.accepts {
        Accepts::Name(names) => format!(": {}", names().join(", ")),
        Accepts::Number(_, unit) | Accepts::Real(_, unit) if !unit.is_empty() => format!(" ({unit})"),
        Accepts::Form(words, _) => format!(": {words}"),
        _ => String::new(),
    };
    let arg = Arg::new(setting.name).long(long).help_heading(heading);
    match setting.accepts {
        Accepts::Flag => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("true|false")
        }
        Accepts::Bytes(_) => arg.value_name("SIZE"),
        Accepts::Real(..) | Accepts::Number(..) => arg.value_name("N"),
        Accepts::Time(_) => arg.value_name("TIME"),
        Accepts::Name(_) => arg.value_name("NAME"),
        Accepts::Form(..) => arg.value_name("VALUES"),
    }
    .help(format!("{doc}{values} [default: {}]", default(setting)))
}

/// The default in words, and as what it is given where the words are not taken.
fn default<T: Clone + Default>(setting: &Setting<T>) -> String {
    let (text, words) = (setting.value(&T::default()), setting.default());
    if text == words { words } else { format!("{text}: {words}") }
}

/// What of a table is offered as arguments.
pub trait Offered {
    /// The options.
    type Options: Clone + Default + 'static;
    /// Their table.
    const TABLE: &'static Table<Self::Options>;
    /// What they are listed under in the help.
    const HEADING: &'static str;
}

/// How the buffer pool works: a preset, and choices that override it.
#[derive(Debug, Clone, Default)]
pub struct Pool;

impl Offered for Pool {
    type Options = PoolOptions;
    const TABLE: &'static Table<PoolOptions> = &POOL_OPTIONS;
    const HEADING: &'static str = "Buffer pool";
}

/// How a tier works. Kept with the database, for every later opening by this command.
#[derive(Debug, Clone, Default)]
pub struct Tier;

impl Offered for Tier {
    type Options = TierOptions;
    const TABLE: &'static Table<TierOptions> = &TIER_OPTIONS;
    const HEADING: &'static str = "Tier";
}

/// The options of a table that were given, by name.
#[derive(Debug, Clone, Default)]
pub struct Given<O>(Vec<(&'static str, String)>, PhantomData<O>);

impl<O: Offered> Given<O> {
    /// Those that were given, with their values.
    pub fn shown(&self, of: &O::Options) -> String {
        let given = self.0.iter().filter_map(|(name, _)| O::TABLE.settings.iter().find(|s| s.name == *name));
        given.map(|s| format!("{} {}", s.name, s.value(of))).collect::<Vec<_>>().join(", ")
    }
}

impl<O: Offered> Args for Given<O> {
    fn augment_args(cmd: Command) -> Command {
        let offered = O::TABLE.settings.iter().filter_map(|s| Some((s, s.cli?)));
        offered.fold(cmd, |cmd, (setting, long)| cmd.arg(arg(setting, long, O::HEADING)))
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl<O: Offered> FromArgMatches for Given<O> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given<O>, clap::Error> {
        let offered = O::TABLE.settings.iter().filter(|s| s.cli.is_some());
        let given = offered.filter_map(|s| Some((s.name, matches.get_one::<String>(s.name)?.clone())));
        Ok(Given(given.collect(), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<O: Offered> Given<O> {
    /// One option as if it was given, or none.
    pub fn one(name: &'static str, value: Option<String>) -> Given<O> {
        Given(value.map(|value| (name, value)).into_iter().collect(), PhantomData)
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `options` with those that were given.
    pub fn over(&self, mut options: O::Options) -> Result<O::Options, Failure> {
        let set = self.0.iter().try_for_each(|(name, value)| O::TABLE.set(&mut options, name, value));
        set.map_err(|e| Failure::Usage(format!("{} option {e}", O::TABLE.of)))?;
        Ok(options)
    }
}

impl Given<Pool> {
    /// The engine's options for the pool.
    pub fn options(&self) -> Result<PoolOptions, Failure> {
        let options = self.over(PoolOptions::default())?;
        options.validate().map_err(|e| Failure::Usage(e.to_string()))?;
        Ok(options)
    }
}
