//! A class while it is heard: what must hold for it, what must not, and what only helps.

use alloc::string::String;
use alloc::vec::Vec;

/// How a class stands after all was heard.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Standing {
    /// All that it needs is known to be so.
    Holds,
    /// Something that it needs is not known.
    Possible,
    /// Something that it needs is known to be otherwise.
    RuledOut,
}

impl Standing {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A class while it is heard.
#[derive(Debug, Default)]
pub(in crate::diagnosis) struct Hearing {
    is_open: bool,
    is_out: bool,
    evidence: Vec<String>,
    against: Vec<String>,
}

impl Hearing {
    /// The class needs this. Empty sentences are left out.
    pub(super) fn must(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => self.say_for(yes),
            Some(false) => {
                self.is_out = true;
                self.say_against(no);
            }
            None => self.is_open = true,
        }
        self
    }

    /// The class is not possible with this.
    pub(super) fn must_not(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => {
                self.is_out = true;
                self.say_against(yes);
            }
            Some(false) => self.say_for(no),
            None => {}
        }
        self
    }

    /// This speaks for the class, or against it, and decides nothing.
    pub(super) fn helps(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => self.say_for(yes),
            Some(false) => self.say_against(no),
            None => {}
        }
        self
    }

    fn say_for(&mut self, sentence: String) {
        if !sentence.is_empty() {
            self.evidence.push(sentence);
        }
    }

    fn say_against(&mut self, sentence: String) {
        if !sentence.is_empty() {
            self.against.push(sentence);
        }
    }

    /// How the class stands, and what was said for and against it.
    pub(super) fn done(self) -> (Standing, Vec<String>, Vec<String>) {
        let standing = match (self.is_out, self.is_open) {
            (true, _) => Standing::RuledOut,
            (false, true) => Standing::Possible,
            (false, false) => Standing::Holds,
        };
        (standing, self.evidence, self.against)
    }
}
