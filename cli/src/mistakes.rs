//! The error of a command line or a setting that makes no sense; the exit code is 64.

/// Settings that make no sense, one line each.
#[derive(Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<String>);

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}
