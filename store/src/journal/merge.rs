//! Journal or catalogue: which of them is right about a record.
//!
//! The journal is, where it is whole. Where a place of it is damaged, changes are lost, and their
//! numbers tell which: none that can be read has them. A catalogue that had heard of a lost change
//! is right about every record that the journal says nothing newer about, also where it has none: a
//! deletion was lost then. Nothing is written here.

use std::collections::BTreeMap;

use crate::catalogue::Catalogue;
use crate::clock::ClockRecord;
use crate::error::Result;
use crate::journal::contents::Contents;
use crate::records::{
    ActionRecord, AttemptRecord, CaptureRecord, IncidentRecord, PartRecord, RankRecord, Record,
};

/// Records named in the log, one line each; the rest is counted.
const SAID_MAX: usize = 100;

/// Where journal and catalogue differ, and the journal is not simply right.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    /// Values of the catalogue that the journal lost.
    pub(crate) taken: BTreeMap<Vec<u8>, Vec<u8>>,
    /// How many of those it has otherwise, or says to be deleted.
    pub(crate) older: usize,
    /// Records of the journal whose deletion it lost.
    pub(crate) gone: Vec<Vec<u8>>,
    /// Records of the catalogue that are deleted.
    pub(crate) stale: Vec<Vec<u8>>,
    /// Number of the last change that the catalogue has heard of.
    pub(crate) arrived: u64,
    /// True when the journal lost changes that the catalogue has.
    pub(crate) is_mending: bool,
}

impl Merge {
    /// Compares them.
    pub(crate) fn of(contents: &Contents, catalogue: &Catalogue) -> Result<Self> {
        let known = catalogue.records()?;
        Ok(Self::compare(contents, known, catalogue.sequence()?))
    }

    pub(crate) fn compare(
        contents: &Contents,
        known: BTreeMap<Vec<u8>, Vec<u8>>,
        arrived: u64,
    ) -> Self {
        let until = contents.lost_until(arrived);
        let mut merge = Self { arrived, is_mending: until > 0, ..Self::default() };
        for key in contents.live.keys() {
            if !known.contains_key(key) && contents.is_before(key, until) {
                merge.gone.push(key.clone());
            }
        }
        for (key, value) in known {
            let is_older = contents.is_before(&key, until);
            match contents.live.get(&key) {
                Some(same) if *same == value => continue,
                Some(_) if !is_older => continue,
                None if contents.dead.contains(&key) && !is_older => {
                    merge.stale.push(key);
                    continue;
                }
                // It was not deleted: the journal lost it.
                None if !contents.dead.contains(&key) => {}
                _ => merge.older += 1,
            }
            merge.taken.insert(key, value);
        }
        merge
    }

    /// True when the journal is not as it should be.
    pub(crate) fn has_more(&self) -> bool {
        !self.taken.is_empty() || !self.gone.is_empty()
    }

    /// True when something that the journal says counts no more.
    pub(crate) fn overrules(&self) -> bool {
        self.older > 0 || !self.gone.is_empty()
    }

    /// Brings the journal's records to what they should be.
    pub(crate) fn mend(&mut self, live: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        for key in &self.gone {
            live.remove(key);
        }
        live.append(&mut self.taken);
    }

    /// Kind and id of each record that the journal had lost, or has older.
    pub(crate) fn names(&self) -> Vec<String> {
        self.taken.keys().chain(&self.gone).map(|key| name(key)).collect()
    }

    /// Says which records differ, if the journal lost changes.
    pub(crate) fn say(&self) {
        if !self.is_mending {
            return;
        }
        let taken = self.taken.keys().map(|key| (key, "comes from the catalogue"));
        let gone = self.gone.iter().map(|key| (key, "is deleted, says the catalogue"));
        for (key, what) in taken.chain(gone).take(SAID_MAX) {
            let record = name(key);
            tracing::warn!(record, "the journal lost the last change of this record: it {what}");
        }
        let more = (self.taken.len() + self.gone.len()).saturating_sub(SAID_MAX);
        if more > 0 {
            tracing::warn!(records = more, "so it is with more records");
        }
    }
}

/// Kind and id of a record, for a person.
fn name(key: &[u8]) -> String {
    let Some((kind, id)) = key.split_first() else { return "nothing".to_string() };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
    let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let (before, last) = id.split_at(id.len().saturating_sub(4));
    match *kind {
        AttemptRecord::KIND => format!("attempt {}", number(last)),
        RankRecord::KIND => format!("rank {} of attempt {}", number(last), number(before)),
        CaptureRecord::KIND => format!("capture {}", text(id)),
        PartRecord::KIND => {
            let capture = before.strip_suffix(&[0]).unwrap_or(before);
            format!("rank {} of capture {}", number(last), text(capture))
        }
        IncidentRecord::KIND => format!("incident {}", text(id)),
        ActionRecord::KIND => format!("action {}", text(id)),
        ClockRecord::KIND => "the store's clock".to_string(),
        _ => format!("record {}", text(key)),
    }
}
