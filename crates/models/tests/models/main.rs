//! The models through their public surface, one file for each.

mod faults;
mod flash_array;
mod flash_cache;
mod flash_device;
mod flash_power;
mod flash_raw;
mod flash_wa;
mod flash_wear;
mod health;
mod link;
mod mem_lengths;
mod memory;
mod models;
mod profiles;
mod simulated;
mod sparse;
mod wire;
