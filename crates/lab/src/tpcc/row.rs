//! Fixed-field rows: each table's row is a byte array with every column at a fixed place, little endian, text padded
//! with spaces (clause 1.3.1 allows fixed length for "variable text"). An update of any column therefore leaves the
//! length of the row as it was.
//!
//! Decoding checks the length only; [`check_text`] and each row's `validate` look at the contents and serve the
//! consistency check, where a row may have been altered by hand.

/// Why bytes are not a row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The table.
    pub table: &'static str,
    /// What does not fit.
    pub why: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Drops the padding of a text column.
pub fn trim(padded: &[u8]) -> &[u8] {
    let end = padded.iter().rposition(|b| *b != b' ').map_or(0, |i| i + 1);
    &padded[..end]
}

/// Writes `text` into a text column, cut or padded with spaces to its width.
pub fn pad(column: &mut [u8], text: &[u8]) {
    let n = text.len().min(column.len());
    column[..n].copy_from_slice(&text[..n]);
    column[n..].fill(b' ');
}

/// Refuses a text column with anything but printable ASCII in it.
pub fn check_text(table: &'static str, name: &str, column: &[u8]) -> Result<(), Damage> {
    match column.iter().position(|b| !(0x20..0x7f).contains(b)) {
        None => Ok(()),
        Some(i) => Err(Damage { table, why: format!("column {name} holds byte {:#04x} at {i}, not text", column[i]) }),
    }
}

/// What every row type offers to generic code.
pub trait Row: Sized {
    /// Name of the table.
    const TABLE: &'static str;

    /// Takes a stored value.
    fn decode(value: &[u8]) -> Result<Self, Damage>;

    /// The value to store.
    fn as_bytes(&self) -> &[u8];

    /// Refuses contents that no row of this table has: text that is not printable.
    fn validate(&self) -> Result<(), Damage>;
}

/// Defines a row type: `row! { /// doc "table" Name { /// doc getter, setter: type; .. } }` with the types `u8`,
/// `u32`, `u64`, `i64` and `text(width)`.
macro_rules! row {
    ($(#[$doc:meta])* $table:literal $name:ident { $($columns:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name {
            bytes: [u8; $name::LEN],
        }

        row!(@columns $table $name 0usize; [] $($columns)*);

        impl $name {
            /// A row of zeros and spaces.
            pub fn blank() -> $name {
                let mut row = $name { bytes: [0; $name::LEN] };
                row.blank_text();
                row
            }
        }

        impl $crate::tpcc::row::Row for $name {
            const TABLE: &'static str = $table;

            fn decode(value: &[u8]) -> Result<$name, $crate::tpcc::row::Damage> {
                match value.try_into() {
                    Ok(bytes) => Ok($name { bytes }),
                    Err(_) => Err($crate::tpcc::row::Damage {
                        table: $table,
                        why: format!("{} bytes long, {} expected", value.len(), $name::LEN),
                    }),
                }
            }

            fn as_bytes(&self) -> &[u8] {
                &self.bytes
            }

            fn validate(&self) -> Result<(), $crate::tpcc::row::Damage> {
                self.check_texts()
            }
        }
    };
    (@columns $table:literal $name:ident $at:expr; [$(($cname:ident, $cat:expr, $clen:expr))*]) => {
        impl $name {
            /// Length of a row in bytes.
            pub const LEN: usize = $at;

            fn blank_text(&mut self) {
                $( self.bytes[$cat..$cat + $clen].fill(b' '); )*
            }

            fn check_texts(&self) -> Result<(), $crate::tpcc::row::Damage> {
                $( $crate::tpcc::row::check_text($table, stringify!($cname), &self.bytes[$cat..$cat + $clen])?; )*
                Ok(())
            }
        }
    };
    (@columns $table:literal $name:ident $at:expr; [$($texts:tt)*]
        $(#[$doc:meta])* $get:ident, $set:ident: text($width:literal); $($rest:tt)*) => {
        impl $name {
            $(#[$doc])*
            pub fn $get(&self) -> &[u8] {
                $crate::tpcc::row::trim(&self.bytes[$at..$at + $width])
            }

            /// Sets the column of the same name, padded or cut to its width.
            pub fn $set(&mut self, text: &[u8]) {
                $crate::tpcc::row::pad(&mut self.bytes[$at..$at + $width], text);
            }
        }
        row!(@columns $table $name $at + $width; [$($texts)* ($get, $at, $width)] $($rest)*);
    };
    (@columns $table:literal $name:ident $at:expr; [$($texts:tt)*]
        $(#[$doc:meta])* $get:ident, $set:ident: $int:ident; $($rest:tt)*) => {
        impl $name {
            $(#[$doc])*
            pub fn $get(&self) -> $int {
                $int::from_le_bytes(self.bytes[$at..$at + size_of::<$int>()].try_into().expect("width of the type"))
            }

            /// Sets the column of the same name.
            pub fn $set(&mut self, value: $int) {
                self.bytes[$at..$at + size_of::<$int>()].copy_from_slice(&value.to_le_bytes());
            }
        }
        row!(@columns $table $name $at + size_of::<$int>(); [$($texts)*] $($rest)*);
    };
}

pub(crate) use row;
