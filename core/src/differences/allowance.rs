//! Limits on what a run may have more of than an earlier one, for checks before a change is merged.
//!
//! A limit is about the highest rank: that is the one which runs out of memory first.

use core::str::FromStr;

use super::{Kind, Level};
use crate::account::Account;

/// What a limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// An account.
    Account(Account),
    /// The bytes of each line of code.
    Line,
}

/// How much more is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// A part of the baseline, in thousandths.
    Permille(u64),
    /// An amount in the account's unit.
    Amount(u64),
}

/// A limit on a difference between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// What it is about.
    pub of: About,
    /// How much more is allowed.
    pub most: Most,
}

impl Allowance {
    /// Is the limit about differences of this kind with this name?
    pub fn is_about(&self, kind: Kind, name: &str) -> bool {
        match self.of {
            About::Line => kind == Kind::Line,
            About::Account(account) => kind == Kind::Account && name == account.as_str(),
        }
    }

    /// Has the highest rank of a run more than the limit allows beyond that of the baseline?
    pub fn is_exceeded(&self, run: &Level, baseline: &Level) -> bool {
        let allowed = match self.most {
            Most::Amount(amount) => u128::from(amount),
            Most::Permille(permille) => u128::from(baseline.highest) * u128::from(permille) / 1000,
        };
        u128::from(run.highest) > u128::from(baseline.highest) + allowed
    }
}

impl FromStr for About {
    type Err = strum::ParseError;

    /// Reads `line` or the word of an account.
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        if word == Kind::Line.as_str() { Ok(Self::Line) } else { word.parse().map(Self::Account) }
    }
}
