//! Random transactions against a serial model.
