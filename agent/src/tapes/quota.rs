//! Decides whose tapes an agent keeps when there are more than its bound.
//!
//! No user can keep the tapes of another out: a full agent gives up a tape of the user who has the
//! most, the dead before the living and those whose process was not seen before the others, as long
//! as that user then still has as many as the newcomer's. A tape displaces none that is more
//! certain, and no living one of a user who has few: one with many unknown user ids would else push
//! out the ranks of others one by one. This file does not delete tapes.

use memtape_core::limits::{TAPES_KEPT_PER_USER_MAX, TAPES_PER_NODE_MAX};
use memtape_core::sharing::Amounts;

use crate::node::accounts::Account;

/// Name of a tape inside the agent, in the order of discovery; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TapeKey(pub(crate) u64);

/// How certain the process of a tape is. The least certain tape gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// The process is gone.
    Dead,
    /// The lock is held, by a process that was not seen.
    Held,
    /// The process was seen when the tape was found.
    Proved,
}

/// A known tape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The tape's key.
    pub(crate) key: TapeKey,
    /// Account of the tape's user.
    pub(crate) account: Account,
    /// How certain its process is.
    pub(crate) standing: Standing,
}

/// The quota's decision about one more tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The tape fits beside the others.
    Free,
    /// The tape replaces this one.
    InPlaceOf(TapeKey),
    /// Nowhere.
    None,
}

/// Decides about one more tape of a user; `held` is in the order of discovery.
pub(crate) fn room(held: &[Held], account: Account, standing: Standing) -> Room {
    if held.len() < TAPES_PER_NODE_MAX {
        return Room::Free;
    }
    if standing == Standing::Dead {
        return Room::None;
    }
    let counts: Amounts<Account> = held.iter().map(|of| (of.account, 1)).collect();
    let of = |account| held.iter().filter(move |of| of.account == account);
    // Of equal ones the oldest.
    let weakest =
        |account| of(account).filter(|of| of.standing < standing).min_by_key(|of| of.standing);
    let newest = |account| of(account).rfind(|of| of.standing <= standing);
    let most = counts.most().filter(|(_, count)| *count > counts.of(account) + 1);
    let displaced = most.and_then(|(most, count)| {
        let has_many = count > TAPES_KEPT_PER_USER_MAX as u64;
        weakest(most).or_else(|| newest(most).filter(|_| has_many))
    });
    let displaced = displaced.or_else(|| weakest(account));
    displaced.map_or(Room::None, |of| Room::InPlaceOf(of.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tapes of users: `(uid, dead, living)`.
    fn held(users: &[(Account, usize, usize)]) -> Vec<Held> {
        let of = |&(uid, dead, living): &(Account, usize, usize)| {
            let with = move |standing| move |_| (uid, standing);
            (0..dead).map(with(Standing::Dead)).chain((0..living).map(with(Standing::Proved)))
        };
        let all = users.iter().flat_map(of).enumerate();
        all.map(|(key, (account, standing))| Held { key: TapeKey(key as u64), account, standing })
            .collect()
    }

    fn check(users: &[(Account, usize, usize)], uid: Account, expected: Room) {
        assert_eq!(room(&held(users), uid, Standing::Proved), expected, "{users:?}");
    }

    #[test]
    fn the_user_with_most_tapes_gives_one_up() {
        let max = TAPES_PER_NODE_MAX;
        let in_place_of = |key: usize| Room::InPlaceOf(TapeKey(key as u64));
        check(&[(7, max - 1, 0)], 7, Room::Free);
        // The oldest of the dead goes first, then the newest of the living.
        check(&[(1, 0, 4), (7, 10, max - 14)], 1, in_place_of(4));
        check(&[(1, 0, 4), (7, 0, max - 4)], 1, in_place_of(max - 1));
        check(&[(7, 0, max)], 1, in_place_of(max - 1));
        // A user who has as many as any other displaces dead tapes of their own alone.
        check(&[(1, 0, max / 2), (7, 0, max / 2)], 7, Room::None);
        check(&[(1, 0, max / 2), (7, 1, max / 2 - 1)], 7, in_place_of(max / 2));
        check(&[(1, 3, max / 2 - 3), (7, 0, max / 2)], 7, Room::None);
        check(&[(7, 0, max)], 7, Room::None);
        assert_eq!(room(&held(&[(7, 0, max)]), 1, Standing::Dead), Room::None);
    }

    #[test]
    fn tapes_whose_process_was_not_seen_give_way() {
        let max = TAPES_PER_NODE_MAX;
        let mut known = held(&[(7, 0, max)]);
        (5..max).for_each(|of| known[of].standing = Standing::Held);
        let in_place_of = |key: usize| Room::InPlaceOf(TapeKey(key as u64));
        assert_eq!(room(&known, 7, Standing::Proved), in_place_of(5));
        assert_eq!(room(&known, 1, Standing::Proved), in_place_of(5));
        assert_eq!(room(&known, 7, Standing::Held), Room::None);
        known.iter_mut().for_each(|of| of.standing = Standing::Proved);
        assert_eq!(room(&known, 1, Standing::Held), Room::None);
    }

    #[test]
    fn no_flood_takes_more_than_an_equal_part() {
        let mut known = held(&[(1, 0, 300), (2, 20, 30)]);
        for flood in 0..3000_u64 {
            let key = TapeKey(10_000 + flood);
            match room(&known, 9, Standing::Proved) {
                Room::Free => {}
                Room::InPlaceOf(given_up) => known.retain(|of| of.key != given_up),
                Room::None => continue,
            }
            known.push(Held { key, account: 9, standing: Standing::Proved });
        }
        let count = |uid| known.iter().filter(|of| of.account == uid).count();
        assert_eq!((count(1), count(2), count(9)), (300, 50, TAPES_PER_NODE_MAX - 350));
    }

    /// A user with a new id for each tape displaces no living rank of earlier users.
    #[test]
    fn many_users_of_one_tape_push_out_no_living_one() {
        let kept = TAPES_KEPT_PER_USER_MAX;
        let mut known = held(&[(1, 0, 8), (2, 0, kept)]);
        for flood in 0..3000_u64 {
            let (key, account) = (TapeKey(10_000 + flood), Account::from(100_000 + flood));
            match room(&known, account, Standing::Proved) {
                Room::Free => {}
                Room::InPlaceOf(given_up) => known.retain(|of| of.key != given_up),
                Room::None => continue,
            }
            known.push(Held { key, account, standing: Standing::Proved });
        }
        let count = |account| known.iter().filter(|of| of.account == account).count();
        assert_eq!((count(1), count(2), known.len()), (8, kept, TAPES_PER_NODE_MAX));
    }
}
