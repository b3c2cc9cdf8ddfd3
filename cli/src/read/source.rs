//! Decides what a name on the command line is: a file, a folder of files, or a capture by its id.
//!
//! The content of a file decides what it is, when it is opened ([`super::content`]); names decide
//! only which files of a folder are read. A path that exists is never taken for an id.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::client::Client;
use crate::globals::Globals;
use crate::read::captures::{self, StoredRank, is_id};
use crate::read::folders;

/// Endings of the files in a folder that are read.
pub(crate) const ENDINGS: [&str; 8] = [
    ".pickle",
    ".pkl",
    ".pickle.gz",
    ".pkl.gz",
    ".pickle.zst",
    ".pkl.zst",
    ".tape",
    ".rankbody.zst",
];

/// Those of PyTorch's memory snapshots.
pub(crate) const PICKLES: &[&str] = ENDINGS.split_at(6).0;

/// Endings of compressed snapshots in a folder that are not read, but named as such.
const UNREAD: [&str; 4] = [".pickle.xz", ".pkl.xz", ".pickle.bz2", ".pkl.bz2"];

/// One thing to read: the state of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file; `-` is stdin.
    File(PathBuf),
    /// A rank of a capture that the coordinator has.
    Stored(StoredRank),
}

impl Source {
    /// Its name in output: the path, or `cap-…/rank2`.
    pub(crate) fn name(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Stored(of) => Path::new(&of.capture).join(format!("rank{}", of.rank)),
        }
    }
}

/// What was named, and whom to ask for the captures among it.
#[derive(Debug)]
pub(crate) struct Sources {
    /// In the order given; folders and captures are replaced by what is in them.
    pub(crate) list: Vec<Source>,
    client: Option<Client>,
}

impl Sources {
    /// Finds what was named; of captures only `rank` if one is given.
    /// Fails when a folder cannot be listed or holds nothing to read, and when the coordinator does
    /// not have a capture or its rank.
    pub(crate) fn find(
        given: &[PathBuf],
        rank: Option<u32>,
        globals: &Globals,
    ) -> anyhow::Result<Self> {
        let mut found = Self { list: Vec::new(), client: None };
        for path in given {
            found.add(path, rank, globals)?;
        }
        Ok(found)
    }

    /// Whom to ask for captures; none where no capture was named.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    fn add(&mut self, path: &Path, rank: Option<u32>, globals: &Globals) -> anyhow::Result<()> {
        if let Some(id) = path.to_str().filter(|name| is_id(name) && !path.exists()) {
            if self.client.is_none() {
                self.client = Some(globals.client()?);
            }
            if let Some(client) = &self.client {
                let ranks = captures::ranks(client, id, rank)?;
                self.list.extend(ranks.into_iter().map(Source::Stored));
            }
            return Ok(());
        }
        if path == Path::new("-") || !path.is_dir() {
            self.list.push(Source::File(path.to_path_buf()));
            return Ok(());
        }
        let is_wanted = |name: &str| ENDINGS.iter().chain(&UNREAD).any(|end| name.ends_with(end));
        let files = folders::files(path, is_wanted)?;
        if files.is_empty() {
            bail!(
                "{} holds no snapshot: give files, or a folder with {} in it",
                path.display(),
                ENDINGS.map(|ending| format!("*{ending}")).join(", ")
            );
        }
        self.list.extend(files.into_iter().map(Source::File));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::files::ProcessState;

    use super::*;

    #[test]
    fn names_are_files_folders_or_ids() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let coordinator = "http://127.0.0.1:1".to_string();
        let globals = Globals {
            coordinator,
            tls_dir: None,
            token_file: None,
            json: false,
            color: clap::ColorChoice::Never,
            die_with_parent: None,
        };
        let scratch = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(scratch.path().join("node-a")).expect("a folder");
        let names = ["b.tape", "a.pkl", "c.pickle.xz", "notes.txt", "node-a/rank2.rankbody.zst"];
        for name in names {
            std::fs::write(scratch.path().join(name), "x").expect("a file");
        }
        let find = |path: PathBuf| Sources::find(&[path], None, &globals);
        let found = find(scratch.path().to_path_buf()).expect("a folder with files");
        let expected = ["a.pkl", "b.tape", "c.pickle.xz", "node-a/rank2.rankbody.zst"];
        let expected = expected.map(|name| Source::File(scratch.path().join(name)));
        assert_eq!(found.list, expected);
        // Whether a file is there is found when it is opened.
        let missing = find(PathBuf::from("missing.pickle")).expect("a path");
        assert_eq!(missing.list, [Source::File(PathBuf::from("missing.pickle"))]);
        let unanswered = find(PathBuf::from("cap-1")).expect_err("no coordinator");
        assert!(unanswered.to_string().contains("coordinator"), "{unanswered:#}");
        let empty = scratch.path().join("empty");
        std::fs::create_dir(&empty).expect("a folder");
        assert!(find(empty).expect_err("nothing").to_string().contains("holds no snapshot"));
        let process = ProcessState::Alive;
        let stored = StoredRank { capture: "cap-1".to_string(), rank: 3, process };
        let stored = Source::Stored(stored);
        assert_eq!(stored.name(), Path::new("cap-1/rank3"));
    }
}
