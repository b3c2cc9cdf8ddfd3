//! The user whom a user id belongs to: for a subordinate one, the user it was given to.
//!
//! `/etc/subuid` gives users ranges of 65,536 further ids for user namespaces, and files of a
//! namespace belong to these. Where a node is shared, all of them are one user. Nothing here reads
//! a file. Ids that a directory service gives out are not known here: each is a user.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// Accounts that subordinate ids were given to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts(Vec<(RangeInclusive<u32>, u32)>);

impl Accounts {
    /// Reads `/etc/subuid` (`USER:FIRST:COUNT`, where the user is a name or an id) with the names
    /// of `/etc/passwd`. The ranges of an unknown name are one user, with their lowest id. Lines
    /// without meaning are left out.
    pub fn parse(subuid: &str, passwd: &str) -> Self {
        let user = |line: &'_ str| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            Some((name.as_bytes().to_vec(), fields.nth(1)?.parse().ok()?))
        };
        let uids: BTreeMap<Vec<u8>, u32> = passwd.lines().filter_map(user).collect();
        let range = |line: &'_ str| {
            let mut fields = line.trim().split(':');
            let name = fields.next()?.as_bytes().to_vec();
            let first: u32 = fields.next()?.parse().ok()?;
            let count: u32 = fields.next()?.parse().ok()?;
            Some((name, first, first.checked_add(count.checked_sub(1)?)?))
        };
        let ranges: Vec<_> = subuid.lines().filter_map(range).collect();
        let mut lowest = BTreeMap::new();
        for (name, first, _) in &ranges {
            let of = lowest.entry(name.clone()).or_insert(*first);
            *of = (*first).min(*of);
        }
        let account = |name: &[u8]| {
            let number = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            uids.get(name).copied().or(number).or_else(|| lowest.get(name).copied())
        };
        let given =
            ranges.iter().filter_map(|(name, first, last)| Some((*first..=*last, account(name)?)));
        Self(given.collect())
    }

    /// The user whom an id belongs to: itself, unless it was given to another.
    pub fn of(&self, uid: u32) -> u32 {
        let given = self.0.iter().find(|(range, _)| range.contains(&uid));
        given.map_or(uid, |(_, account)| *account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_belong_to_their_user() {
        let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbad line\n";
        let subuid = "alice:100000:65536\n1001:165536:65536\ngone:300000:10\ngone:250000:10\n\
            alice:many:1\n:::\nx:4294967295:2\ny:7:0\n";
        let accounts = Accounts::parse(subuid, passwd);
        for (uid, account) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            // A name that is not there is one user with all its ranges.
            (250_009, 250_000),
            (300_009, 250_000),
            (300_010, 300_010),
            (7, 7),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(accounts.of(uid), account, "{uid}");
        }
        assert_eq!(Accounts::default().of(5), 5);
    }
}
