//! Small files of text beside a database.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The text of a regular file of at most `most` bytes. What is no file, or longer, is refused at once: reading a FIFO
/// could wait for ever, and `/dev/zero` does not end.
///
/// # Errors
/// Those of the system; `InvalidData` for what is no such file, or no text.
pub fn read_text(path: impl AsRef<Path>, most: u64) -> Result<String> {
    assert!(most < u64::MAX, "one byte more shows that there are more");
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Error::new(ErrorKind::InvalidData, "it is no file"));
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(Error::new(ErrorKind::InvalidData, format!("it has more than {most} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_files_of_text_are_read() {
        let path = std::env::temp_dir().join(format!("varve-text-{}", std::process::id()));
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        assert!(read_text(&path, 3).unwrap_err().to_string().contains("more than 3 bytes"));
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 3).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_text(&path, 3).unwrap_err().kind(), ErrorKind::NotFound);
        for other in ["/dev/zero", "/"] {
            assert!(read_text(other, 3).unwrap_err().to_string().contains("no file"), "{other}");
        }
    }
}
