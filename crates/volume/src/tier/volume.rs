//! The tier in the life of a database: whether there is one, what its loss would mean, and how it comes up and goes
//! down.
//!
//! The fast device bears the generation of the database as its stamp: after the data device has said that a new one is
//! intended, before the log's superblock says it. One of another generation is refused, or emptied where it held copies
//! only.
//!
//! Invariants: the record says that pages may be newer on the fast device before one is (see `record.rs`); a tier that
//! is not unsettled has nothing newer there, unless its manager writes back.

use super::manager::{self, DirtyWrites};
use super::record::Record;
use super::{Keeper, Tier, TierOptions};
use crate::admin::{Admin, Opening, Owner, PageCost, Report, Stamp};
use crate::report::{Counted, Resized};
use crate::{PageId, Single, VolumeError};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Device, Health};
use varve_rt::Mutex;

/// How long to wait for writes that are under way.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether a superblock's record is that of a tier.
pub(crate) fn is_record(bytes: &[u8]) -> bool {
    Record::decode(bytes).is_some()
}

/// Whether the manager leaves the newest version of pages on the fast device alone.
fn writes_back(options: &TierOptions) -> bool {
    let entry = manager::find(&options.manager).expect("validated before");
    (entry.make)(&options.options).style().dirty == DirtyWrites::Back
}

/// A tier as a database has it.
pub struct TierVolume {
    tier: Arc<Tier>,
    /// Not yet while the database is being made.
    owner: Mutex<Option<Arc<dyn Owner>>>,
    /// Pages are to be copied home, and the record put right, when the database has recovered.
    unsettled: bool,
}

impl TierVolume {
    fn new(tier: Arc<Tier>, owner: Option<Arc<dyn Owner>>) -> TierVolume {
        TierVolume { tier, owner: Mutex::new(owner), unsettled: false }
    }

    fn owner(&self) -> Arc<dyn Owner> {
        self.owner.lock().clone().expect("it belongs to a database since it was opened")
    }

    /// The tier in it.
    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// An empty tier for a new database, and its record.
    pub fn create(
        single: Arc<Single>,
        fast: &Arc<dyn Device>,
        options: TierOptions,
        how: &Opening,
    ) -> Result<(TierVolume, Vec<u8>), VolumeError> {
        let back = writes_back(&options);
        let tier = Tier::create(single, fast.clone(), how.identity, options)?;
        tier.stamp(how.generation)?;
        let record = Record::of(&tier, back, true).encode();
        Ok((TierVolume::new(tier, None), record))
    }

    /// Opens the tier that the record names, or makes one where that is asked for; none: the database has none, or goes
    /// on without. Also says why it began empty, if the fast device was of another time. `admits` says of which
    /// generations that may be.
    pub fn open(
        single: Arc<Single>,
        fast: Option<&Arc<dyn Device>>,
        record: &[u8],
        owner: Arc<dyn Owner>,
        admits: &dyn Fn(Stamp) -> bool,
        options: TierOptions,
        how: &Opening,
    ) -> Result<Option<(TierVolume, Option<String>)>, VolumeError> {
        let with = |fast| Parts { single, fast, owner: owner.clone(), options, how };
        match (Record::decode(record), fast) {
            (None, None) => Ok(None),
            (None, Some(fast)) if how.attach && !how.read_only => Ok(Some((with(fast).anew()?, None))),
            (None, Some(fast)) => Err(VolumeError::Invalid(format!(
                "the database has no tier, but there is a fast device for one ({}): attach it with `varve tier \
                 attach`, or open once with `--without-tier` to forget it",
                fast.info().name
            ))),
            (Some(record), None) => {
                may_be_missing(record, how)?;
                if !how.read_only {
                    owner.note(Vec::new())?;
                }
                Ok(None)
            }
            (Some(record), Some(fast)) if record.forsaken => Ok(Some((with(fast).anew()?, None))),
            (Some(record), Some(fast)) => with(fast).again(record, admits).map(Some),
        }
    }

    fn record(&self) -> Option<Record> {
        Record::decode(&self.owner().record())
    }
}

/// What a tier is opened with.
struct Parts<'a> {
    single: Arc<Single>,
    fast: &'a Arc<dyn Device>,
    owner: Arc<dyn Owner>,
    options: TierOptions,
    how: &'a Opening,
}

impl Parts<'_> {
    /// An empty tier on a fast device, whatever it holds; for reading, the database does without.
    fn anew(self) -> Result<TierVolume, VolumeError> {
        let Parts { single, fast, owner, options, how } = self;
        if how.read_only {
            return Ok(TierVolume::new(Tier::without(single, options)?, Some(owner)));
        }
        let back = writes_back(&options);
        let tier = Tier::create(single, fast.clone(), how.identity, options)?;
        tier.stamp(how.generation)?;
        owner.note(Record::of(&tier, back, how.stamps).encode())?;
        Ok(TierVolume::new(tier, Some(owner)))
    }

    /// The tier that was there.
    fn again(
        self,
        record: Record,
        admits: &dyn Fn(Stamp) -> bool,
    ) -> Result<(TierVolume, Option<String>), VolumeError> {
        let (back, how, owner) = (writes_back(&self.options), self.how, self.owner.clone());
        let tier = Tier::look(self.single.clone(), self.fast.clone(), how.identity, self.options.clone())
            .map_err(|e| what_was_there(e, record))?;
        if let Some(why) = of_another_time(&tier, record, how.generation, admits) {
            if record.only_there() {
                return Err(VolumeError::Mismatch(why));
            }
            if !how.read_only {
                owner.note(Record { forsaken: true, ..record }.encode())?;
            }
            return Ok((self.anew()?, Some(why)));
        }
        if !how.read_only {
            tier.begin_writing()?;
        }
        if !how.read_only && record.stamped {
            // A crash may have left it one ahead: the next crash must find it where the log is, or will be.
            tier.stamp(how.generation)?;
        }
        if !how.read_only && (back || record.back) {
            owner.note(Record::of(&tier, true, record.stamped).encode())?;
        }
        let unsettled = record.back && !back && !how.read_only;
        Ok((TierVolume { unsettled, ..TierVolume::new(tier, Some(owner)) }, None))
    }
}

/// Why a fast device does not belong to a log of that generation, if it does not.
fn of_another_time(tier: &Tier, record: Record, log: Stamp, admits: &dyn Fn(Stamp) -> bool) -> Option<String> {
    tier.fast().filter(|_| record.stamped)?;
    let stamp = tier.stamped().unwrap_or_default();
    if admits(stamp) {
        return None;
    }
    let (number, of) = (stamp.number, log.number);
    Some(match number.cmp(&of) {
        Ordering::Less => format!("the fast device is older (generation {number}) than the log ({of})"),
        Ordering::Greater => format!("`data` and log are older (generation {of}) than the fast device ({number})"),
        Ordering::Equal => format!(
            "the fast device and the log are of copies of the database that went different ways (generation {of})"
        ),
    })
}

/// To the error of a wrecked fast device, adds what is lost with it, and what can be done.
fn what_was_there(e: VolumeError, record: Record) -> VolumeError {
    let VolumeError::TierWrecked { device, what } = e else { return e };
    let lost = match record.only_there() {
        true => {
            format!("it held the newest version of {}, which are older or nowhere in the slow device", record.count())
        }
        false => "nothing is lost with it, every page has its newest version at home: `--without-tier` goes on \
                  without it"
            .to_string(),
    };
    VolumeError::TierWrecked { device, what: format!("{what}; {lost}") }
}

/// Whether the database may be opened without its fast device; the error names what would be lost.
fn may_be_missing(record: Record, how: &Opening) -> Result<(), VolumeError> {
    if record.only_there() {
        return Err(VolumeError::Missing(format!(
            "it holds the newest version of {}, which are older or nowhere in the slow device: bring it back, or \
             restore a backup",
            record.count()
        )));
    }
    match how.without {
        true => Ok(()),
        false => Err(VolumeError::Missing(
            "nothing is lost with it, every page has its newest version at home: open with `--without-tier` to go on \
             without it"
                .into(),
        )),
    }
}

impl Admin for TierVolume {
    fn costs(&self) -> Vec<PageCost> {
        let costs = self.tier.options().options.costs;
        vec![
            PageCost { read: costs.read_slow, write: costs.write_slow },
            PageCost { read: costs.read_fast, write: costs.write_fast },
        ]
    }

    fn memory(&self) -> usize {
        self.tier.outqueue_memory()
    }

    fn belongs_to(&self, owner: Arc<dyn Owner>, health: &Arc<Health>) {
        *self.owner.lock() = Some(owner);
        self.tier.belongs_to(health);
    }

    fn answers(&self) {
        self.tier.answer_to(Arc::new(Answer(self.owner())));
    }

    fn start(&self) -> Result<(), VolumeError> {
        self.tier.start()
    }

    fn end(&self) {
        self.tier.end();
    }

    fn stop(&self) {
        self.tier.stop();
    }

    fn doubtful(&self) -> Vec<PageId> {
        self.tier.doubtful()
    }

    fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Everything goes home, as the manager of now never leaves anything newer on the fast device.
    fn settle(&self) -> Result<(), VolumeError> {
        self.tier.all_home()?;
        // A page that was written while its older version went home is in its slot alone.
        while self.tier.tier_stats().newer > 0 {
            varve_rt::sleep(PAUSE);
            self.tier.all_home()?;
        }
        assert!(!writes_back(self.tier.options()), "a manager that writes back has nothing to settle");
        let stamped = self.record().is_some_and(|record| record.stamped);
        self.owner().note(Record::of(&self.tier, false, stamped).encode())
    }

    fn is_stamped(&self) -> bool {
        true
    }

    fn stamp(&self, stamp: Stamp) -> Result<(), VolumeError> {
        self.tier.stamp(stamp)
    }

    fn note_stamped(&self) -> Result<(), VolumeError> {
        match self.record() {
            Some(record) if !record.stamped => self.owner().note(Record { stamped: true, ..record }.encode()),
            _ => Ok(()),
        }
    }

    fn closed(&self) -> Result<(), VolumeError> {
        // Without this map the next opening takes more pages for newer than there are, which is safe.
        let _ = self.tier.save_map();
        self.owner().note(Record::closed(&self.tier, writes_back(self.tier.options())).encode())
    }

    fn why_uncut(&self) -> Option<&'static str> {
        Some("a database on a tier cannot be compacted: take the tier away first (`varve tier detach`)")
    }

    fn report(&self) -> Report {
        Report { tier: Some(self.tier.tier_stats()), ..Report::default() }
    }

    fn counted(&self) -> Counted {
        self.tier.counted()
    }

    fn all_home(&self) -> Result<(), VolumeError> {
        self.tier.all_home()
    }

    fn resize(&self, bytes: u64) -> Result<Resized, VolumeError> {
        self.tier.resize(bytes)
    }
}

/// Has the database answer for what the tier cannot promise any more.
struct Answer(Arc<dyn Owner>);

impl Keeper for Answer {
    fn broken(&self, cause: &VolumeError) {
        self.0.broken(&format!("write or flush of the tier: {cause}"));
    }

    fn forsake(&self) -> Result<(), VolumeError> {
        let Some(record) = Record::decode(&self.0.record()) else { return Ok(()) };
        self.0.note(Record { forsaken: true, ..record }.encode()).map_err(|e| {
            let what = format!("the fast device failed, and that could not be noted: {e}");
            self.0.broken(&what);
            VolumeError::Options(what)
        })
    }
}
