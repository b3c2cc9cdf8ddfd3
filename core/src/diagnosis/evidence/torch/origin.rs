//! What Memtape's own exports say of themselves, under the key `memtape`: whose they are, where
//! their steps end, and whether their segments are made up.
//!
//! Files of PyTorch say nothing of that; everything is unknown there.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::pickle::torch::{SettingValue, TorchSnapshot};

/// What a file says of where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Global rank.
    pub rank: Option<u32>,
    /// Finished steps.
    pub step: Option<u64>,
    /// Name of the job.
    pub job: Option<String>,
    /// Which attempt at the job.
    pub attempt: Option<u32>,
    /// Name of the tape: one process.
    pub tape_id: Option<String>,
}

/// Whose file it is.
pub fn origin(snapshot: &TorchSnapshot) -> Origin {
    Origin {
        rank: number(snapshot, "rank").and_then(|rank| rank.try_into().ok()),
        step: number(snapshot, "step"),
        job: text(snapshot, "job").map(ToString::to_string),
        attempt: number(snapshot, "attempt").and_then(|attempt| attempt.try_into().ok()),
        tape_id: text(snapshot, "tape_id").filter(|id| !id.is_empty()).map(ToString::to_string),
    }
}

/// Bytes that a device reserves, where the file's segments are made up around its blocks.
pub(crate) fn reserved_without_segments(snapshot: &TorchSnapshot, device: u32) -> Option<u64> {
    let made_up = value(snapshot, &format!("devices.{device}.segments_made_up"))?;
    (made_up == SettingValue::Bool(true))
        .then(|| number(snapshot, &format!("devices.{device}.reserved")).unwrap_or(0))
}

/// Ends of the device's steps, in order: steps finished, and the number of the event behind it.
pub(crate) fn step_ends(snapshot: &TorchSnapshot, device: u32) -> Vec<(u64, u32)> {
    let prefix = format!("devices.{device}.step_ends.");
    let one = |setting: &crate::pickle::torch::Setting| {
        let finished = setting.name.strip_prefix(prefix.as_str())?.parse().ok()?;
        let SettingValue::Int(event) = setting.value else { return None };
        Some((finished, u32::try_from(event).ok()?))
    };
    let mut ends: Vec<(u64, u32)> = snapshot.origin.iter().filter_map(one).collect();
    ends.sort_unstable_by_key(|&(finished, event)| (event, finished));
    ends
}

fn value(snapshot: &TorchSnapshot, name: &str) -> Option<SettingValue> {
    snapshot.origin.iter().find(|setting| setting.name == name).map(|setting| setting.value)
}

fn number(snapshot: &TorchSnapshot, name: &str) -> Option<u64> {
    match value(snapshot, name)? {
        SettingValue::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

fn text<'a>(snapshot: &'a TorchSnapshot, name: &str) -> Option<&'a str> {
    match value(snapshot, name)? {
        SettingValue::Text(text) => Some(snapshot.text(text)),
        _ => None,
    }
}
