//! How a diagnosis comes about: which account is looked at, and who says what about it.

use super::diagnosis::Diagnosis;
use super::failure;
use super::report;
use super::standstill;
use crate::detector::{Growth, Layer};
use crate::diagnosis::evidence::account::{account, primary_device};
use crate::diagnosis::evidence::case::{self, Case, peer_accounts};
use crate::diagnosis::evidence::context::Context;
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::evidence::outside::{Outside, Records};
use crate::diagnosis::judges;
use crate::snapshot::{DeviceSnapshot, RankSnapshot};

/// Compares the suspect with its earlier self and with its peers.
///
/// Peers at another step than the suspect are left out, and that is said in `against`.
pub fn diagnose(growth: &Growth, suspect: &RankSnapshot, peers: &[&RankSnapshot]) -> Diagnosis {
    Inquiry { growth, suspect, peers, context: &Context::default(), past: None }.diagnose()
}

impl Inquiry<'_> {
    /// Compares the suspect with its earlier self and with its peers, in the light of what is
    /// known beside.
    pub fn diagnose(&self) -> Diagnosis {
        let Self { growth, suspect, peers, .. } = *self;
        let layer = growth.layer;
        if layer == Layer::Process {
            return failure::failure(self);
        }
        if growth.is_standstill() {
            return standstill::standstill(self);
        }
        let empty = DeviceSnapshot { complete: true, ..DeviceSnapshot::default() };
        let named = suspect.devices.iter().find(|device| device.device == growth.device);
        let device = named.or_else(|| primary_device(suspect)).unwrap_or(&empty);
        let reading = case::reading(layer, growth, suspect);
        let account = account(suspect, device, reading);
        let of_peers = peer_accounts(suspect, peers, reading);
        let mut case = Case::new(layer, self, device, &account, &of_peers);
        let records = Records::of(layer, self);
        case.outside_lines = records.as_ref().map(|records| Outside::new(&case, records));
        let lines = case.lines(&of_peers);
        let alternatives = judges::alternatives(&case, &lines);
        let mut diagnosis = report::report(&case, &lines, alternatives);
        if suspect.devices.is_empty() && !layer.has_no_lines() {
            diagnosis.doubt("the snapshot of the rank holds no device");
        }
        diagnosis
    }
}
