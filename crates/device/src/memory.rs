//! How much memory the process may have: the machine's, or less where a control group or the process's own limit says
//! so.
//!
//! Invariant: what cannot be read limits nothing; the least of all limits on the way up counts.

use crate::buf::{address_space, physical_memory};
use std::path::{Path, PathBuf};

/// Memory that the process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// Whether a limit, of a control group or of the process, gives less than the machine has.
    pub lowered: bool,
}

/// Memory that the process may have, as the machine, its control groups (version 1 and 2) and its own limit (`ulimit
/// -v`) say; `None` where the system does not tell.
pub fn memory_limit() -> Option<MemoryLimit> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = read(Path::new("/proc/self/cgroup")).and_then(|groups| group_limit(&groups, read));
    let machine = physical_memory();
    let bytes = groups.into_iter().chain(machine).chain(address_space()).min()?;
    assert!(machine.is_none_or(|machine| bytes <= machine), "a process has no more than the machine");
    Some(MemoryLimit { bytes, lowered: machine.is_none_or(|machine| bytes < machine) })
}

/// The least limit of the memory groups that `/proc/self/cgroup` names, and of those above them; `read` reads a file.
/// (Linux, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.)
fn group_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = match number {
            "0" if controllers.is_empty() => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let below = Path::new(path.trim_start_matches('/'));
        let above = below.ancestors().map(|group| PathBuf::from(root).join(group).join(file));
        // (Version 2 writes "max" where there is no limit, version 1 a number that no machine has.)
        above.filter_map(|file| read(&file)?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files by their path.
    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        group_limit(groups, |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.to_string())
        })
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/memory.max", "4294967296\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(limit("0::/a/b\n", &files), Some(1 << 30));
        assert_eq!(limit("0::/\n", &files), Some(4 << 30), "in a namespace of its own");
        assert_eq!(limit("12:cpu,cpuacct:/c\n4:memory:/c\n0::/none\n", &files), Some(512 << 20));
        assert_eq!(limit("12:cpu:/c\n", &files), None);
        assert_eq!(limit("", &files), None);
        assert_eq!(limit("0::/a\n", &[("/sys/fs/cgroup/a/memory.max", "max")]), None);
    }

    #[test]
    fn a_process_has_no_more_than_the_machine() {
        let (limit, machine) = (memory_limit().unwrap(), physical_memory().unwrap());
        assert!(limit.bytes > 1 << 20 && limit.bytes <= machine, "{limit:?} of {machine}");
        assert_eq!(limit.lowered, limit.bytes < machine);
    }
}
