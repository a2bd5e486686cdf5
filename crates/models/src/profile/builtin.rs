//! The device profiles that come with the program, by name.

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../profiles/devices/", $name, ".toml")))),*]
    };
}

/// Name and text of each.
pub(super) const DEVICES: &[(&str, &str)] = profiles![
    "disk-15k",
    "disk-7k2",
    "gd2l-disk",
    "gd2l-ssd",
    "samsung-830",
    "samsung-850",
    "intel-530",
    "intel-545s",
    "ocz-vector-150",
    "intel-x25-e",
    "slc-emulator-16",
    "openssd-jasmine",
    "sata-consumer-mlc",
    "sata-enterprise-plp",
    "nvme-consumer-tlc",
    "nvme-tlc",
    "nvme-fixed",
    "nand-slc-1gbit",
];
