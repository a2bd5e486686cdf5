//! The B+-tree.

pub(crate) mod edit;
pub(crate) mod leaf;
pub(crate) mod node;
pub(crate) mod overflow;
pub(crate) mod split;
#[cfg(test)]
mod tests_node;
