//! Advice for a running database: what native flash would bring it.

use super::Db;
use crate::buffer::Flush;
use crate::error::{Error, Result};
use varve_volume::flash::advise::{Array, FlashAdvice, Goal, Question, Written, advise};

impl Flush {
    /// The write, as the flash advisor has it; none: an old trace does not say whose the page is.
    pub fn written(&self) -> Option<Written> {
        let changed = self.changed.and_then(|changed| changed.gross).filter(|_| !self.new && !self.whole);
        Some(Written { page: self.page.0, keyspace: self.keyspace?, changed })
    }
}

impl Db {
    /// What the pages of this database would be like on native flash: which delta records pay for which keyspace, and
    /// how regions should be laid out (`docs/advise.md`). It goes by the latest page writes, which are kept with the
    /// option `update_sizes`, and takes some seconds of one core.
    ///
    /// Errors: the option is off; nothing was written yet; the array is too small.
    pub fn advise_flash(&self, array: &Array, goal: Goal) -> Result<FlashAdvice> {
        if !self.inner.options.update_sizes {
            let how = "open the database with update_sizes=true, and ask when it has been at work for a while";
            return Err(Error::Invalid(format!("no page writes are kept for the flash advisor: {how}")));
        }
        let stats = self.stats();
        let writes: Vec<Written> = self.latest_flushes().iter().filter_map(Flush::written).collect();
        let question = Question {
            writes,
            from: 0,
            names: self.keyspace_names(),
            pages: stats.pages - stats.free_pages.min(stats.pages),
            page_size: stats.page_size as u32,
            array: array.clone(),
            goal,
            ageing: None,
        };
        Ok(advise(&question)?)
    }
}
