//! The target against a real Ray: the cluster of `tests/ray/cluster`, which sets the variables.

use std::io::Write as _;
use std::time::Duration;

use super::{check_drains, check_token};
use crate::restart::ray::{Drain, RayCluster};

#[tokio::test]
async fn the_real_ray_drains_idle_nodes_once() {
    let variable = |name: &str| std::env::var(format!("MEMTAPE_TEST_RAY{name}")).ok();
    let (Some(address), Some(token)) = (variable(""), variable("_TOKEN")) else {
        // Past the test harness: `cargo xtask test` collects these lines.
        let line = "left out: drains of a real Ray need tests/ray/cluster\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let cluster = RayCluster { address, token: Some(token) };
    let drain = Drain { cluster, timeout: Duration::from_secs(10) };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    check_token(&drain).await;
    check_drains(&drain, &host).await;
}
