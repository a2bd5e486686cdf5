//! How much of its life the drive under a file says is used up: the NVMe SMART log (readable by root as a rule), or
//! what eMMC and UFS-like drives show in sysfs. Anything else does not report it.

use std::ffi::CString;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// `NVME_IOCTL_ADMIN_CMD`: read and write, 72 bytes, type `N`, number 0x41.
const ADMIN_COMMAND: libc::c_ulong = 0xC048_4E41;
/// Get Log Page.
const GET_LOG_PAGE: u8 = 0x02;
/// The SMART / health log: its number, and its length in words less one above it.
const SMART: u32 = 0x02 | 127 << 16;
/// Byte of the log that is the percentage used; 255 stands for more.
const PERCENTAGE_USED: usize = 5;

/// `struct nvme_admin_cmd` of the kernel.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);
const _: () = assert!(ADMIN_COMMAND as usize >> 16 & 0x3fff == size_of::<AdminCommand>(), "the call names its size");
const _: () = assert!(offset_of!(AdminCommand, address) == 24 && offset_of!(AdminCommand, data_bytes) == 36);
const _: () = assert!(offset_of!(AdminCommand, words_10_15) == 40 && offset_of!(AdminCommand, timeout_ms) == 64);

/// Share of its rated life that the drive under the open file has used up, 1.0 for all of it (it may go on); `None`:
/// not reported.
pub(super) fn life_used(fd: RawFd) -> Option<f64> {
    let drive = drive(fd)?;
    let emmc = std::fs::read_to_string(drive.join("device/life_time")).ok();
    emmc.as_deref().and_then(emmc_used).or_else(|| nvme_used(&drive))
}

/// The directory in sysfs of the drive (not of a partition) under the file.
pub(super) fn drive(fd: RawFd) -> Option<PathBuf> {
    // SAFETY: `stat` is plain data, filled by fstat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writes.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return None;
    }
    let block = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
    let device = if block { stat.st_rdev } else { stat.st_dev };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let found = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if found.join("partition").exists() { found.parent().map(Path::to_path_buf) } else { Some(found) }
}

/// Two estimates in steps of a tenth, as hexadecimal numbers: the worse one counts; 11 stands for more than all.
fn emmc_used(text: &str) -> Option<f64> {
    let steps = text.split_whitespace().filter_map(|word| u8::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    steps.filter(|n| (1..=11).contains(n)).max().map(|n| f64::from(n) / 10.0)
}

fn nvme_used(drive: &Path) -> Option<f64> {
    let name = drive.file_name()?.to_str()?;
    if !name.starts_with("nvme") {
        return None;
    }
    let path = CString::new(format!("/dev/{name}")).ok()?;
    // SAFETY: the path is a C string.
    let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if opened < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else's.
    let device = unsafe { OwnedFd::from_raw_fd(opened) };
    let mut log = [0u8; 512];
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        namespace: u32::MAX,
        address: log.as_mut_ptr() as u64,
        data_bytes: log.len() as u32,
        words_10_15: [SMART, 0, 0, 0, 0, 0],
        timeout_ms: 1000,
        ..AdminCommand::default()
    };
    // SAFETY: the command is the kernel's structure, and its address that of 512 bytes which live until the call
    // returns.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), ADMIN_COMMAND, &raw mut command) };
    // A critical warning byte and a temperature precede it: a log of zeros is none.
    (done == 0 && log.iter().any(|b| *b != 0)).then(|| f64::from(log[PERCENTAGE_USED]) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_estimate_counts_and_nonsense_is_no_report() {
        assert_eq!(emmc_used("0x01 0x03\n"), Some(0.3));
        assert_eq!(emmc_used("0x0b 0x00\n"), Some(1.1));
        assert_eq!(emmc_used("0x00 0x00\n"), None, "not defined");
        assert_eq!(emmc_used("what\n"), None);
    }

    #[test]
    fn any_file_may_be_asked() {
        let file = std::fs::File::open(".").unwrap();
        assert!(life_used(file.as_raw_fd()).is_none_or(|used| (0.0..=2.55).contains(&used)));
        assert_eq!(life_used(-1), None);
    }
}
