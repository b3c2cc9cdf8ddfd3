//! The files of the repository, and the frame in which each rule is tried on them.

use std::fs;
use std::path::Path;

/// The repository.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("tests/repository/ lies in the repository")
}

/// A file of the repository.
pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn of(path: &str, text: &str) -> Self {
        Self { path: path.to_string(), text: text.to_string() }
    }

    /// Numbered lines, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/")
    }
}

/// The rule finds something wrong with the bad example, and nothing with any of the files.
pub(crate) fn check(rule: impl Fn(&Source) -> Vec<String>, bad: &Source, files: &[Source]) {
    assert!(!rule(bad).is_empty(), "the rule no longer sees what it is there for");
    assert!(!files.is_empty(), "there are no files to look at");
    let found: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

pub(crate) const TEXT: [&str; 17] = [
    "rs",
    "toml",
    "md",
    "proto",
    "py",
    "c",
    "h",
    "sh",
    "yaml",
    "yml",
    "json",
    "js",
    "css",
    "html",
    "service",
    "Dockerfile",
    "tpl",
];

pub(crate) fn rust() -> Vec<Source> {
    sources(&["rs"])
}

/// The packages' manifests.
pub(crate) fn manifests() -> Vec<Source> {
    let mut found = sources(&["toml"]);
    found.retain(|file| file.path.ends_with("/Cargo.toml"));
    found
}

pub(crate) fn folder(path: &str) -> String {
    path.split('/').next().unwrap_or_default().to_string()
}

/// All files with one of these endings, in order of their paths. Builds, hidden folders and
/// recorded data are left out.
pub(crate) fn sources(endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    collect(root(), endings, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &Path, endings: &[&str], found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let entry = entry.expect("an entry can be read");
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().expect("an entry has a type");
        let is_ours = !name.starts_with('.')
            && !matches!(name.as_str(), "target" | "shared" | "data" | "node_modules");
        if kind.is_dir() && is_ours {
            collect(&path, endings, found);
        } else if kind.is_file() && endings.contains(&name.rsplit('.').next().unwrap_or_default()) {
            let relative = path.strip_prefix(root()).expect("below the root");
            let bytes = fs::read(&path).expect("a file can be read");
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.push(Source { path: relative.to_string_lossy().replace('\\', "/"), text });
        }
    }
}
