//! The buffer pool and its policies, each file by itself: what they keep, whom they evict, when they write.

mod cleaner_classes;
mod eager_cleaner;
mod gd2l;
mod gd2l_c;
mod gd2l_model;
mod hand;
mod paper_policies;
mod papers;
mod pointer;
mod policies;
mod pool_sim;
#[path = "../pool_support/mod.rs"]
mod pool_support;
mod tier_pairs;
