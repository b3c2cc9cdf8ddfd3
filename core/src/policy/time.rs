//! Times in a policy file.

use alloc::format;
use alloc::string::String;

use serde::de::{Deserialize as _, Deserializer, Error as _};

use crate::settings::duration;

/// Reads a time, in nanoseconds.
pub(super) fn any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let ns = duration(&text).ok().and_then(|time| u64::try_from(time.as_nanos()).ok());
    ns.ok_or_else(|| D::Error::custom(format!("{text:?} must be a time such as 90s, 30m or 24h")))
}

/// Reads the window of a budget, in nanoseconds: one without length would hold no action.
pub(super) fn window<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let time = any(deserializer)?;
    let wrong = || D::Error::custom("the time of a budget must be more than 0");
    if time > 0 { Ok(time) } else { Err(wrong()) }
}
