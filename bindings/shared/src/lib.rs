//! What Varve's bindings to other languages have in common: failures with a code ([`Failure`]), handles that are not
//! used in a forked process ([`Kept`]), transactions that several handles share ([`SharedTx`]), and rows in pieces
//! ([`Cursor`]).

mod cursor;
mod failure;
mod kept;
mod tx;

pub use cursor::{Cursor, Span};
pub use failure::{Code, Failure, Result};
pub use kept::Kept;
pub use tx::SharedTx;
