//! What a panic in a simulation says: the message is preceded by the seed, the virtual time and the simulated thread,
//! and the place is kept for the failure that is reported. A thread that is dying of a power cut panics silently: it
//! has lost everything anyway.

use super::world;
use crate::ended::Panicked;
use std::any::Any;
use std::sync::Once;

/// Puts our hook before the one in place, once per process.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(w) = world()
                && !w.current.get().is_null()
            {
                let me = w.current();
                if me.dying.get() {
                    return;
                }
                *me.panic_place.borrow_mut() = info.location().map(ToString::to_string);
                let ns = w.clock.get();
                let (s, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
                eprintln!("\nsimulation with seed {}, at {s}.{ns:09} s, thread '{}':", w.config.seed, me.name);
            }
            before(info);
        }));
    });
}

/// How the thread of that name ended, by what it threw and, in a simulation, with the place.
pub(crate) fn panicked(thread: &str, payload: &(dyn Any + Send)) -> Panicked {
    let place = world().and_then(|w| w.current().panic_place.borrow_mut().take());
    Panicked::new(thread, payload, place)
}
