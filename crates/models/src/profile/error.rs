//! What can be wrong with a profile, said so that the file can be mended.

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No profile of that name comes with the program.
    #[error("there is no device profile {name:?}: give one of {names}, or the path of a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        names: String,
    },
    /// The file cannot be read.
    #[error("the profile {file} cannot be read: {why}; check its path")]
    Unreadable {
        /// Path of the file.
        file: String,
        /// What the system said.
        why: String,
    },
    /// The file's text is not a profile.
    #[error("{file}, line {line}, {key}: {message}")]
    Invalid {
        /// Path of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key (or section) concerned.
        key: String,
        /// What is wrong and what is accepted.
        message: String,
    },
    /// The described device cannot be built or filled.
    #[error("{name} cannot be built: {why}")]
    Unfit {
        /// The profile.
        name: String,
        /// Why, and what is accepted.
        why: String,
    },
    /// A device longer than the profile's capacity was asked for.
    #[error("{name} holds {capacity} bytes, not {len}: ask for less, or raise the capacity in a copy of the profile")]
    TooLong {
        /// The profile.
        name: String,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        capacity: u64,
    },
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

/// The key, or the section, that a line is about.
fn key_in(line: &str) -> String {
    let key = line.split(['=', '#']).next().unwrap_or_default().trim();
    if key.is_empty() { "the file".into() } else { key.to_string() }
}

impl ProfileError {
    pub(super) fn of_toml(file: &str, text: &str, error: &toml::de::Error) -> ProfileError {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        let key = key_in(text.lines().nth(line - 1).unwrap_or_default());
        ProfileError::Invalid { file: file.into(), line, key, message: error.message().replace('\n', " ") }
    }

    pub(super) fn of_key(file: &str, text: &str, key: &str, message: String) -> ProfileError {
        let names = |line: &str| {
            let found = key_in(line);
            let key = key.rsplit('.').next().unwrap_or(key);
            found == key || found.trim_matches(['[', ']']).split('.').any(|part| part == key)
        };
        let line = text.lines().position(names).map_or(1, |i| i + 1);
        ProfileError::Invalid { file: file.into(), line, key: key.into(), message }
    }
}
