//! The shards of a cluster as text: their owners, those without an answer, and who waits.

use memtape_core::traffic::RequestRates;
use memtape_proto::api::{Cluster, MissingShard, Shard, WaitingCoordinator};

use crate::clock::age;
use crate::output::clean;
use crate::render::palette::Meaning;
use crate::render::table::{Cell, Table};
use crate::render::units::{duration, plural};

const SECONDS_PER_DAY: f64 = 86_400.0;

/// An owner whose sign of life is older than this is gone: one that waits takes over after 5 s.
const GONE_AFTER_NS: u64 = 10_000_000_000;

/// A row for each shard that answered, what requests to the bucket cost, a row for each shard
/// without an answer, and one for each coordinator that waits.
pub(crate) fn text(cluster: &Cluster, now_ns: i64) -> String {
    let rate = |of: &Shard, rate: fn(&RequestRates) -> f64, digits: usize| {
        of.requests.as_ref().map(|requests| format!("{:.digits$}", rate(requests)))
    };
    let answered: Table<'_, Shard> = Table::of(&cluster.shards)
        .column(">shard", |of| u32::from(of.shard))
        .column("owner", |of| of.owner.clone())
        .column_if_any("name", |of| Some(of.name.clone()).filter(|name| !name.is_empty()))
        .column(">owned since", |of| age(of.owned_since_wall_ns, now_ns))
        .column("version", |of| of.version.clone())
        .column_if_any(">epoch", |of| (of.epoch > 0).then(|| of.epoch.to_string()))
        .column_if_any(">sign of life", |of| of.sign_of_life_age_ns.map(duration))
        .column(">lag", |of| duration(of.lag_ns))
        .column_if_any(">requests/s", |of| rate(of, |of| of.requests_per_second, 1))
        .column_if_any(">PUT/s", |of| rate(of, |of| of.puts_per_second, 1))
        .column_if_any(">$/day", |of| rate(of, |of| of.dollars_per_day, 2));
    let mut text = answered.text_or("no shard");
    for shard in cluster.shards.iter().filter(|shard| !shard.address_problem.is_empty()) {
        let line = format!("shard {}: {}", shard.shard, clean(&shard.address_problem));
        text += &format!("{}\n", Meaning::Bad.paint(&line));
    }
    let requests: Vec<&RequestRates> =
        cluster.shards.iter().filter_map(|shard| shard.requests.as_ref()).collect();
    if let Some(priced) = requests.first() {
        text += &cost(priced, &requests);
    }
    if !cluster.missing_shards.is_empty() {
        let missing: Table<'_, MissingShard> = Table::of(&cluster.missing_shards)
            .column(">shard", |of| u32::from(of.shard))
            .column("owner", |of| Cell::new(&of.owner, Meaning::Bad))
            .column_if_any("name", |of| Some(of.name.clone()).filter(|name| !name.is_empty()))
            .column_if_any(">epoch", |of| (of.epoch > 0).then(|| of.epoch.to_string()))
            .column_if_any(">sign of life", |of| of.sign_of_life_age_ns.map(duration))
            .column("no answer", |of| of.why.clone());
        text.push('\n');
        text += &missing.text_or("");
    }
    text += &short_of_coordinators(cluster);
    text + &waiting(cluster)
}

/// What to do about shards whose owners are gone, where no coordinator waits.
fn short_of_coordinators(cluster: &Cluster) -> String {
    let is_gone = |of: &&MissingShard| of.sign_of_life_age_ns.is_none_or(|age| age > GONE_AFTER_NS);
    let gone = cluster.missing_shards.iter().filter(is_gone).map(|of| of.shard.to_string());
    let gone: Vec<String> = gone.collect();
    let is_any_known = !cluster.waiting.is_empty() || !cluster.waiting_unknown.is_empty();
    if gone.is_empty() || is_any_known || cluster.waiting_left_out > 0 {
        return String::new();
    }
    let shards = gone.join(", ");
    format!("no coordinator is known to wait: start one more for each of: shard {shards}\n")
}

/// What the requests of all shards that answered cost, as arithmetic.
fn cost(priced: &RequestRates, requests: &[&RequestRates]) -> String {
    let sum = |rate: fn(&RequestRates) -> f64| requests.iter().map(|of| rate(of)).sum::<f64>();
    let writing = sum(|of| of.puts_per_second + of.lists_per_second);
    let (reading, dollars) = (sum(|of| of.gets_per_second), sum(|of| of.dollars_per_day));
    let millions = |per_second: f64| per_second * SECONDS_PER_DAY / 1e6;
    format!(
        "{dollars:.2} $ a day for requests, as many as in the last minute: {:.2} million PUT and \
         LIST × {} $ + {:.2} million GET × {} $\n",
        millions(writing),
        priced.dollars_per_million_writing,
        millions(reading),
        priced.dollars_per_million_reading,
    )
}

fn waiting(cluster: &Cluster) -> String {
    let mut text = String::new();
    if !cluster.waiting.is_empty() {
        let waiting: Table<'_, WaitingCoordinator> = Table::of(&cluster.waiting)
            .column("waiting", |of| of.address.clone())
            .column("name", |of| of.name.clone())
            .column("version", |of| of.version.clone())
            .column(">sign of life", |of| duration(of.sign_of_life_age_ns));
        text.push('\n');
        text += &waiting.text_or("");
    }
    if cluster.waiting_left_out > 0 {
        let more = plural(cluster.waiting_left_out, "further coordinator");
        text += &format!("{more} waiting\n");
    }
    if !cluster.waiting_unknown.is_empty() {
        let why = clean(&cluster.waiting_unknown);
        text += &format!("the waiting coordinators are not known: {why}\n");
    }
    text
}

#[cfg(test)]
mod tests;
