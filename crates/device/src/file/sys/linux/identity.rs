//! Which drive lies under a file: model and serial number, as sysfs tells them.

use super::wear;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// See [`super::super::drive_identity`].
pub(super) fn drive_identity(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    of(&wear::drive(file.as_raw_fd())?)
}

/// From the directory of a drive in sysfs. The serial number is where its kind of driver has it: NVMe, virtio; a
/// worldwide identifier where there is none.
fn of(drive: &Path) -> Option<String> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(drive.join(name)).ok()?;
        let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c == '\0').filter(|w| !w.is_empty()).collect();
        Some(words.join(" ")).filter(|text| !text.is_empty())
    };
    let serial = ["device/serial", "serial", "device/wwid", "wwid"].into_iter().find_map(read);
    let parts = [read("device/model"), serial];
    let known: Vec<String> = parts.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_serial_number_are_found_where_drivers_have_them() {
        let dir = std::env::temp_dir().join(format!("varve-identity-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("device")).unwrap();
        assert_eq!(of(&dir), None);
        std::fs::write(dir.join("wwid"), "naa.5000c500\n").unwrap();
        assert_eq!(of(&dir).as_deref(), Some("naa.5000c500"));
        std::fs::write(dir.join("device/model"), "Samsung SSD  850 \n").unwrap();
        std::fs::write(dir.join("serial"), "S21TNX0H\n").unwrap();
        assert_eq!(of(&dir).as_deref(), Some("Samsung SSD 850, S21TNX0H"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn any_path_may_be_asked() {
        assert!(drive_identity(Path::new(".")).is_none_or(|text| !text.trim().is_empty()));
        assert_eq!(drive_identity(Path::new("/there/is/nothing")), None);
    }
}
