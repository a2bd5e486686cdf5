//! Databases that commands close, whatever happens.

use varve::Db;

/// A database that is closed however its command ends, so that the next one finds nothing to recover. A command
/// that wants to know how the closing went calls `close`.
pub struct Closing(pub Db);

impl std::ops::Deref for Closing {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.0
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        // The command has failed, and its own error is told; or it closed the database, and this does nothing.
        let _ = self.0.close();
    }
}
