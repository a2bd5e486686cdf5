//! Memory control groups of Linux, version 1 and 2: a limit on all memory of a process, the page cache it fills
//! included.

use std::path::{Path, PathBuf};
use std::time::Duration;

use varve_lab::{Error, Result};

/// A control group, removed when the value is dropped; its processes have to have ended by then.
pub struct Cgroup(PathBuf);

/// A place where memory control groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    version: u8,
}

impl Cgroup {
    /// Makes a group below the one of this process (version 2: beside it, if it cannot be below) that may use `bytes`
    /// of memory and no swap space.
    ///
    /// Errors: memory control groups are not there or may not be made; the text says what was tried.
    pub fn new(name: &str, bytes: u64) -> Result<Cgroup> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let mut tried = String::new();
        for place in places {
            let path = place.parent.join(format!("varve-compare-{}-{name}", std::process::id()));
            match make(&place, &path, bytes) {
                Ok(()) => return Ok(Cgroup(path)),
                Err(e) => {
                    _ = std::fs::remove_dir(&path);
                    tried += &format!("; {}: {e}", path.display());
                }
            }
        }
        Err(Error::store(format!(
            "no memory control group can be made{tried}. Be root, or own a group (systemd-run --user --scope -p \
             Delegate=yes), or leave out the rows that need one (--only)"
        )))
    }

    /// Where a process writes its number to join.
    pub fn joint(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has ended leaves its group a moment later.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            varve_rt::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot remove the control group {}; remove it with rmdir", self.0.display());
    }
}

/// Moves the calling process into the group with this [`Cgroup::joint`].
pub fn join(joint: &Path) -> Result<()> {
    std::fs::write(joint, "0").map_err(|e| Error::store(format!("cannot join {}: {e}", joint.display())))
}

fn make(place: &Place, path: &Path, bytes: u64) -> std::io::Result<()> {
    if place.version == 1 {
        std::fs::create_dir(path)?;
        std::fs::write(path.join("memory.limit_in_bytes"), bytes.to_string())?;
        // Not there where swap space is not accounted.
        _ = std::fs::write(path.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        return Ok(());
    }
    let control = place.parent.join("cgroup.subtree_control");
    if !std::fs::read_to_string(&control)?.split_whitespace().any(|c| c == "memory") {
        std::fs::write(&control, "+memory")?;
    }
    std::fs::create_dir(path)?;
    std::fs::write(path.join("memory.max"), bytes.to_string())?;
    _ = std::fs::write(path.join("memory.swap.max"), "0");
    Ok(())
}

/// Where groups may be made, by what `/proc/self/cgroup` and `/proc/self/mountinfo` say; the likeliest first.
fn places(own: &str, mounts: &str) -> Vec<Place> {
    let own_of = |version: u8| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let fits =
                if version == 1 { controllers.split(',').any(|c| c == "memory") } else { controllers.is_empty() };
            fits.then(|| path.to_string())
        })
    };
    let mut places = Vec::new();
    for line in mounts.lines() {
        let (Some((mount, system)), fields) = (line.split_once(" - "), line.split(' ').collect::<Vec<_>>()) else {
            continue;
        };
        let mut system = system.split(' ');
        let version = match (system.next(), system.nth(1)) {
            (Some("cgroup"), Some(options)) if options.split(',').any(|o| o == "memory") => 1,
            (Some("cgroup2"), _) => 2,
            _ => continue,
        };
        let (Some(own), Some(root), Some(at)) = (own_of(version), fields.get(3), fields.get(4)) else { continue };
        debug_assert!(mount.contains(at));
        let below = Path::new(&own).strip_prefix(root).unwrap_or(Path::new(&own));
        let group = Path::new(at).join(below.strip_prefix("/").unwrap_or(below));
        if version == 2 && group != Path::new(at) {
            // A group with processes cannot hand its memory on to groups below; beside it is within the same parent.
            let parent = group.parent().expect("below the mount").to_path_buf();
            places.push(Place { parent: group, version });
            places.push(Place { parent, version });
        } else {
            places.push(Place { parent: group, version });
        }
    }
    places.sort_by_key(|place| place.version);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(parent: &str, version: u8) -> Place {
        Place { parent: parent.into(), version }
    }

    #[test]
    fn finds_both_versions() {
        let one = "24 23 0:20 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                   25 23 0:21 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                   26 23 0:22 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let both = places("4:memory:/jobs/7\n0::/\n", one);
        assert_eq!(both, [place("/sys/fs/cgroup/memory/jobs/7", 1), place("/sys/fs/cgroup/unified", 2)]);
        let two = "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let scope = places("0::/user.slice/a.scope\n", two);
        assert_eq!(scope, [place("/sys/fs/cgroup/user.slice/a.scope", 2), place("/sys/fs/cgroup/user.slice", 2)]);
        let container = "30 1 0:26 /box/1 /sys/fs/cgroup/memory rw - cgroup none rw,memory\n";
        assert_eq!(places("3:memory:/box/1\n", container), [place("/sys/fs/cgroup/memory", 1)]);
        assert!(places("", "").is_empty());
    }
}
