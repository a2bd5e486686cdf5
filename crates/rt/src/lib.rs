//! Varve's runtime.
