//! Arguments that concern native flash: what a new database lies on.

use clap::Args;
use std::path::PathBuf;

/// Native flash for a new database.
#[derive(Debug, Args, Clone, Default)]
pub struct FlashArgs {
    /// Native flash for the pages: `image:PATH`, an array that is kept in a file, made where there is none; a new one
    /// needs --layout or --flash-profile (docs/native-flash.md).
    #[arg(long, value_name = "image:PATH", value_parser = image, help_heading = "Native flash")]
    pub flash: Option<PathBuf>,
    /// How the flash is divided: a file with regions and their keyspaces [default: one region of all chips].
    #[arg(long = "layout", value_name = "FILE", requires = "flash", help_heading = "Native flash")]
    pub regions: Option<PathBuf>,
    /// Profile of the array, by name or path, in place of the layout's.
    #[arg(long, value_name = "PROFILE", requires = "flash", help_heading = "Native flash")]
    pub flash_profile: Option<String>,
    /// A new image takes the time that its chips would take.
    #[arg(long, requires = "flash", help_heading = "Native flash")]
    pub flash_paced: bool,
}

fn image(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("image:").filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => Err("give image:PATH, the file that the array is kept in".into()),
    }
}
