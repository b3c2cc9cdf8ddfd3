//! Refusals in the audit.

use std::net::SocketAddr;

use memtape_core::limits::{REFUSALS_LOGGED_AT_ONCE_MAX, REFUSALS_LOGGED_PER_MINUTE_OF_ALL_MAX};
use memtape_store::Store;

use super::*;
use crate::state::counters::Counters;

#[test]
fn refusals_without_a_proven_name_hide_none_with_one() {
    // A rate in a minute must not see how long the test takes.
    clock::set(clock::now());
    let folder = tempfile::tempdir().unwrap();
    let (store, _, _) = Store::open(folder.path()).unwrap();
    let counters = Arc::new(Counters::default());
    let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
    let door = Door::new(None, None, Tokens::new(audit.clone(), Vec::new()), audit).unwrap();
    let refuse = |network: u32, who| {
        let peer = Peer::new(SocketAddr::from((network.to_be_bytes(), 1)));
        door.note_refusal(&peer, 1, who, "lacks the role admin".to_string());
    };
    let of = |name: &str| {
        let entries = door.audit.settled();
        entries.iter().filter(|entry| entry.who == name).count()
    };
    let at_once = REFUSALS_LOGGED_AT_ONCE_MAX as usize;
    // Of one network: the rate of those without a name is not the rate of a name.
    (0..2 * at_once).for_each(|_| refuse(1, None));
    refuse(1, Some("alice"));
    assert_eq!((of("unknown"), of("alice")), (at_once, 1));
    let counted = |reason| counters.losses().find(|(of, _)| *of == reason).unwrap().1;
    assert_eq!(counted("refusal_not_audited"), at_once as u64);
    // Of many networks: all of them have a rate, too, and the log has the same.
    let of_all = REFUSALS_LOGGED_PER_MINUTE_OF_ALL_MAX as usize;
    let networks = 2..3 + 2 * (of_all / at_once) as u32;
    for network in networks.clone() {
        (0..at_once).for_each(|_| refuse(network, None));
    }
    assert!((of_all..2 * of_all).contains(&of("unknown")) && of("alice") == 1);
    let is_logged = |network: &u32| {
        let peer = Peer::new(SocketAddr::from((network.to_be_bytes(), 1)));
        (0..at_once).filter(|_| door.is_logged(&peer)).count()
    };
    let logged: usize = networks.map(|network| is_logged(&network)).sum();
    assert!((of_all..2 * of_all).contains(&logged), "{logged}");
    // A name has one rate over all networks.
    (0..2 * at_once as u32).for_each(|network| refuse(network, Some("alice")));
    assert_eq!(of("alice"), at_once);
}
