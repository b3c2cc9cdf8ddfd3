//! The coordinators that an agent may connect to, and the channel to the present one.
//!
//! Of the addresses that were given, the first one that answers is used. A coordinator of a cluster
//! that does not own the jobs of a stream names the one that does; when that one cannot be reached,
//! the given addresses are tried again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_tls::client::ClientTls;
use tonic::transport::Channel;

use crate::link::channel::{AddressError, Connections, channel};

/// Failures in a row that count where there are several coordinators: the longest wait between two
/// attempts is 3.2 s.
const FAILURES_OF_SEVERAL_MAX: u32 = 4;

/// The coordinators of an agent.
#[derive(Debug)]
pub(crate) struct Coordinators {
    tls: Option<Arc<ClientTls>>,
    /// The given coordinators.
    given: Link,
    are_several: bool,
    /// The owner that a coordinator named.
    named: Mutex<Option<Link>>,
}

/// A way to a coordinator: its addresses, separated by commas.
#[derive(Clone, Debug)]
struct Link {
    addresses: String,
    channel: Channel,
    connections: Connections,
}

impl Link {
    fn new(
        addresses: &str,
        tls: Option<Arc<ClientTls>>,
        several: bool,
    ) -> Result<Self, AddressError> {
        let (channel, connections) = channel(addresses, tls, several)?;
        Ok(Self { addresses: addresses.to_string(), channel, connections })
    }
}

impl Coordinators {
    /// The coordinators at these addresses.
    /// Fails for an address that cannot be used.
    pub(crate) fn new(given: &str, tls: Option<Arc<ClientTls>>) -> Result<Self, AddressError> {
        let are_several = given.contains(',');
        let given = Link::new(given, tls.clone(), are_several)?;
        Ok(Self { tls, given, are_several, named: Mutex::new(None) })
    }

    /// The channel to the present coordinator; it connects when it is first used.
    pub(crate) fn channel(&self) -> Channel {
        self.present().channel
    }

    /// The address of the present coordinator, or all that were given.
    pub(crate) fn address(&self) -> String {
        self.present().addresses
    }

    /// The certificates, where there are some.
    pub(crate) fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_deref()
    }

    /// Most failures in a row that make the wait for the next attempt longer.
    pub(crate) fn failures_max(&self) -> u32 {
        if self.are_several { FAILURES_OF_SEVERAL_MAX } else { u32::MAX }
    }

    /// Ends the connection, if there are several coordinators: the next one goes to another.
    pub(crate) fn leave(&self) {
        self.present().connections.leave();
    }

    /// Goes to another coordinator, which the present one named. False where that cannot be: a
    /// coordinator never leads an agent from TLS to none.
    pub(crate) fn go_to(&self, url: &str) -> bool {
        let is_like_given = url.starts_with("https://") == self.tls.is_some();
        let link = Link::new(url, self.tls.clone(), true).ok().filter(|_| is_like_given);
        let can_go = link.is_some();
        *self.lock() = link;
        can_go
    }

    /// Goes back to the given addresses.
    pub(crate) fn start_over(&self) {
        *self.lock() = None;
    }

    fn present(&self) -> Link {
        self.lock().as_ref().unwrap_or(&self.given).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Link>> {
        // A panic while it was held leaves whole values.
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_named_owner_is_used_until_it_cannot_be_reached() {
        let given = "http://one:7771,http://two:7771";
        let coordinators = Coordinators::new(given, None).unwrap();
        assert_eq!(coordinators.address(), given);
        for refused in ["", "no url", "https://three:7771"] {
            assert!(!coordinators.go_to(refused), "{refused}");
        }
        assert_eq!(coordinators.address(), given);
        assert!(coordinators.go_to("http://three:7771"));
        assert_eq!(coordinators.address(), "http://three:7771");
        assert!(!coordinators.go_to(""), "who owns it is not known");
        assert_eq!(coordinators.address(), given);
        assert!(coordinators.go_to("http://three:7771"));
        coordinators.start_over();
        assert_eq!(coordinators.address(), given);
    }
}
