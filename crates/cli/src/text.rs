//! Keys and values as text: plain where they are UTF-8 without control characters, hexadecimal where not. Sizes.

use crate::output::Failure;
pub use crate::rows::from_hex;
use serde_json::{Map, Value};

/// Bytes given on the command line.
pub fn parse(text: &str, hex: bool) -> Result<Vec<u8>, Failure> {
    if !hex {
        return Ok(text.as_bytes().to_vec());
    }
    from_hex(text)
        .ok_or_else(|| Failure::Usage(format!("{text:?} is not hexadecimal: give an even number of digits 0-9 a-f")))
}

/// A size with K, M, G or T (powers of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: give a number of bytes, or one followed by K, M, G or T");
    let shift = match text.chars().last().map(|c| c.to_ascii_lowercase()) {
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    match n.checked_mul(1 << shift) {
        Some(n) if n > 0 && n.is_multiple_of(4096) => Ok(n),
        Some(_) => Err("sizes are multiples of 4096 bytes (4K)".into()),
        None => Err(wrong()),
    }
}

/// Bytes to hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn plain(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|s| !s.chars().any(char::is_control))
}

/// Bytes for a person: text, or `0x..` where text would mislead. What begins with `0x` is never text.
pub fn show(bytes: &[u8], hex: bool) -> String {
    match plain(bytes) {
        Some(text) if !hex && !text.starts_with("0x") => text.to_string(),
        _ if hex => to_hex(bytes),
        _ => format!("0x{}", to_hex(bytes)),
    }
}

/// Puts bytes into a JSON object as `name`, or as `name_hex` when they are not UTF-8.
pub fn put(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_string(), Value::from(text)),
        Err(_) => object.insert(format!("{name}_hex"), Value::from(to_hex(bytes))),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(object: &mut Map<String, Value>) -> Result<Vec<u8>, String> {
        crate::rows::bytes("key", object.remove("key"), object.remove("key_hex"))
    }

    #[test]
    fn bytes_survive_json() {
        for bytes in [&b"plain"[..], b"", &[0xff, 0, 1], "grüße\n".as_bytes()] {
            let mut object = Map::new();
            put(&mut object, "key", bytes);
            assert_eq!(taken(&mut object).unwrap(), bytes);
        }
        assert!(taken(&mut Map::new()).unwrap_err().contains("key_hex"));
    }

    #[test]
    fn hexadecimal_is_checked() {
        assert_eq!(parse("00ff", true).unwrap(), [0, 255]);
        for bad in ["0", "zz", "é0"] {
            assert!(parse(bad, true).is_err());
        }
        assert_eq!(show(&[0, 255], false), "0x00ff");
        assert_eq!(show(b"abc", false), "abc");
        // Text that looks like bytes is shown as what it is made of.
        assert_eq!(show(b"0x00ff", false), "0x307830306666");
    }
}
