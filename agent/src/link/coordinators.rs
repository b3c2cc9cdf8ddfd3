//! The coordinators that an agent may connect to, and the channel to the present one.
//!
//! Of the addresses that were given, the first one that answers is used. A coordinator of a cluster
//! that does not own the jobs of a stream names the one that does; when that one cannot be reached,
//! the given addresses are tried again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_tls::client::ClientTls;
use tonic::transport::Channel;

use crate::link::channel::{AddressError, channel};

/// The coordinators of an agent.
#[derive(Debug)]
pub(crate) struct Coordinators {
    /// The given addresses, separated by commas.
    given: String,
    tls: Option<Arc<ClientTls>>,
    present: Mutex<(String, Channel)>,
}

impl Coordinators {
    /// The coordinators at these addresses.
    /// Fails for an address that cannot be used.
    pub(crate) fn new(given: &str, tls: Option<Arc<ClientTls>>) -> Result<Self, AddressError> {
        let present = (given.to_string(), channel(given, tls.clone())?);
        Ok(Self { given: given.to_string(), tls, present: Mutex::new(present) })
    }

    /// The channel to the present coordinator; it connects when it is first used.
    pub(crate) fn channel(&self) -> Channel {
        self.lock().1.clone()
    }

    /// The address of the present coordinator, or all that were given.
    pub(crate) fn address(&self) -> String {
        self.lock().0.clone()
    }

    /// The certificates, where there are some.
    pub(crate) fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_deref()
    }

    /// Goes to another coordinator, which the present one named. False where that cannot be: a
    /// coordinator never leads an agent from TLS to none.
    pub(crate) fn go_to(&self, url: &str) -> bool {
        let is_like_given = url.starts_with("https://") == self.tls.is_some();
        let channel = channel(url, self.tls.clone()).ok().filter(|_| is_like_given);
        let Some(channel) = channel else { return false };
        *self.lock() = (url.to_string(), channel);
        true
    }

    /// Goes back to the given addresses.
    pub(crate) fn start_over(&self) {
        if self.address() != self.given {
            self.go_to(&self.given);
        }
    }

    fn lock(&self) -> MutexGuard<'_, (String, Channel)> {
        // A panic while it was held leaves whole values.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
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
        coordinators.start_over();
        assert_eq!(coordinators.address(), given);
    }
}
