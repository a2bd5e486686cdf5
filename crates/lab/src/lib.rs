//! Part of Varve.
