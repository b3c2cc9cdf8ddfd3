//! Kubernetes: suspends and resumes the job of the rank's pod, or deletes the pod.
//!
//! Every write is bound to what was read before: the pod's uid, the object's `resourceVersion`. An
//! agent proves its node by its certificate, but says itself which pod its ranks are in; the pod
//! must be on that node.
//!
//! The object carries the id of the action: in an annotation for ever, and in a label while it is
//! suspended. So a coordinator that was killed between suspending and resuming finds the suspended
//! object by the label, and resumes it; nothing else is kept. An object is not suspended if missing
//! rights would prevent this search.

use std::fmt::{Debug, Display};
use std::time::Duration;

use kube::Config;
use memtape_core::action::{Outcome, TargetKind};
use memtape_core::identity::cut;
use memtape_core::limits::{KUBERNETES_RESUME_SECONDS_MAX, KUBERNETES_SUSPEND_SECONDS_MAX};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::objects::{
    Address, Collection, Controller, KINDS, Kind, Object, controller, left_suspended,
};
use crate::kubernetes::api::{Api, ApiError, is_name};
use crate::restart::target::{Done, Order, Resuming, Running, Target, failed, outcome, refused};

pub(crate) mod nodes;
mod objects;

/// Reason of the event on the restarted object.
const EVENT_REASON: &str = "MemtapeRestart";

/// Bytes of the sentence in an event: Kubernetes takes 1,024.
const EVENT_BYTES_MAX: usize = 1000;

/// Maximum objects that one action left suspended: one, unless programs copy its label.
const LEFT_MAX: usize = 4;

/// Outcome for an unchanged object: nothing was done.
fn not_done(why: impl Display) -> Outcome {
    refused(format!("{why}: nothing was done"))
}

/// Outcome of a change that may or may not have been made.
fn uncertain(why: &ApiError) -> Outcome {
    failed(format!("{why}: it may have been done"))
}

/// Outcome of a failed write.
fn of_write(error: &ApiError) -> Outcome {
    if error.is_refusal() { not_done(error) } else { uncertain(error) }
}

/// The cluster that the coordinator has credentials for.
#[derive(Clone)]
pub(crate) struct Kubernetes {
    /// Connection settings, if not those of kubeconfig or the service account.
    config: Option<Config>,
    /// Time for each request.
    timeout: Duration,
    /// Time until a suspended object has ended, and until it is resumed.
    suspend_max: Duration,
    resume_max: Duration,
    /// Time between two reads of an object that changes.
    poll: Duration,
}

/// Leaves out the configuration, which holds credentials.
impl Debug for Kubernetes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Kubernetes").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Target for Kubernetes {
    fn kind(&self) -> TargetKind {
        TargetKind::Kubernetes
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(self.restart(order).await) })
    }

    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        Box::pin(async {
            let resumed = self.resume_left(order).await.transpose()?;
            Some(outcome(resumed))
        })
    }
}

impl Kubernetes {
    /// The cluster of kubeconfig or of the service account, with this time for each request.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            config: None,
            timeout,
            suspend_max: Duration::from_secs(KUBERNETES_SUSPEND_SECONDS_MAX),
            resume_max: Duration::from_secs(KUBERNETES_RESUME_SECONDS_MAX),
            poll: Duration::from_secs(2),
        }
    }

    async fn connect(&self) -> Result<Api, Outcome> {
        Api::connect(self.config.as_ref(), self.timeout).await.map_err(not_done)
    }

    async fn restart(&self, order: &Order) -> Done {
        let named = [&order.namespace, &order.pod];
        if !named.into_iter().all(|name| is_name(name)) || order.pod_uid.is_empty() {
            return Err(refused("the rank is in no pod that its agent knows"));
        }
        let api = self.connect().await?;
        let (address, pod) = self.pod(&api, order).await?;
        let owner = controller(&api, &order.namespace, &pod).await;
        match owner.map_err(not_done)? {
            Controller::None => {
                let pod = shown(order);
                Err(not_done(format!("pod {pod} has no controller that would replace it")))
            }
            Controller::Replacing(owner) => {
                let only_this = json!({ "preconditions": { "uid": order.pod_uid } });
                order.prove().await?;
                let deleted = api.delete(&address.path(), &address, &only_this).await;
                deleted.map_err(|error| of_write(&error))?;
                announce(&api, order, "Pod", &address, &pod).await;
                Ok(format!("deleted pod {}, which {owner} replaces", shown(order)))
            }
            Controller::Suspendable(object) => self.suspend(&api, order, *object).await,
        }
    }

    /// The pod of the rank: that very one, on its node, not at its end.
    async fn pod(&self, api: &Api, order: &Order) -> Result<(Address, Value), Outcome> {
        let collection = Collection::pods(&order.namespace);
        let address = Address { collection, name: order.pod.clone() };
        let pod = api.get(&address.path(), &address).await.map_err(not_done)?;
        let name = shown(order);
        if pod["metadata"]["uid"] != *order.pod_uid {
            return Err(not_done(format!("pod {name} is another one now")));
        }
        if pod["spec"]["nodeName"] != *order.node {
            return Err(not_done(format!("pod {name} does not run on node {}", order.node)));
        }
        let is_ending = pod["metadata"]["deletionTimestamp"].is_string();
        if is_ending || has_ended(&pod) {
            return Err(not_done(format!("pod {name} has ended or is being deleted")));
        }
        Ok((address, pod))
    }

    /// Suspends an object that runs, and resumes it when it has ended.
    async fn suspend(&self, api: &Api, order: &Order, mut object: Object) -> Done {
        let action = &order.action;
        if object.is_suspended_by(action) {
            return self.finish(api, order, object).await;
        }
        if object.is_suspended() {
            return Err(not_done(format!("{object} is suspended already")));
        }
        if object.is_restarted_by(action) {
            return Ok(format!("{object} was restarted by this action before"));
        }
        // What could not be found again after a kill is not suspended.
        let collection = object.address.collection.clone();
        let left = left_suspended(api, object.kind, &collection, action, LEFT_MAX).await;
        left.map_err(not_done)?;
        let change = object.suspending(action);
        order.prove().await?;
        match api.patch(&object.address.path(), &object.address, &change).await {
            Ok(value) => object.value = value,
            Err(error) if error.is_refusal() => return Err(not_done(error)),
            Err(error) => {
                // The answer is lost: the object says what came of it.
                if !self.sees_suspended(api, action, &mut object).await {
                    return Err(uncertain(&error));
                }
            }
        }
        // A server that does not know the field leaves it out, and takes the rest.
        if !object.is_suspended() {
            let unmarking = object.unmarking();
            if let Err(why) = api.patch(&object.address.path(), &object.address, &unmarking).await {
                tracing::warn!("the id of action {action} stays on {object}: {why}");
            }
            return Err(refused(format!(
                "this version of Kubernetes cannot suspend {object}: nothing was restarted"
            )));
        }
        announce(api, order, object.kind.name, &object.address, &object.value).await;
        self.finish(api, order, object).await
    }

    /// Reads an object until it is suspended by this action. The change may be made after a read,
    /// and a read may fail. Returns false when the time is over, or the object is gone.
    async fn sees_suspended(&self, api: &Api, action: &str, object: &mut Object) -> bool {
        let deadline = Instant::now() + self.resume_max;
        loop {
            match object.read(api).await {
                Ok(()) if object.is_suspended_by(action) => return true,
                Err(ApiError::NotFound { .. }) => return false,
                Ok(()) | Err(_) if Instant::now() >= deadline => return false,
                Ok(()) | Err(_) => sleep(self.poll).await,
            }
        }
    }

    /// Waits until a suspended object has ended, and resumes it. It is resumed in any case.
    async fn finish(&self, api: &Api, order: &Order, mut object: Object) -> Done {
        let limit = self.suspend_max;
        let deadline = Instant::now() + limit;
        let mut is_over = false;
        while !is_over && Instant::now() < deadline {
            sleep(self.poll).await;
            // An error is met again below, if it lasts.
            if let Err(error @ ApiError::NotFound { .. }) = object.read(api).await {
                return Err(uncertain(&error));
            }
            // Another program may have resumed it.
            is_over =
                !object.is_suspended() || object.is_seen_suspended() && is_gone(api, order).await;
        }
        self.resume_object(api, &order.action, &mut object).await?;
        if is_over {
            Ok(format!("suspended and resumed {object}"))
        } else {
            Err(failed(format!(
                "{object} had not ended {limit:?} after it was suspended; it was resumed"
            )))
        }
    }

    /// Resumes an object that this action has suspended, and repeats that until it is taken.
    async fn resume_object(
        &self,
        api: &Api,
        action: &str,
        object: &mut Object,
    ) -> Result<(), Outcome> {
        let deadline = Instant::now() + self.resume_max;
        loop {
            let resumed = match object.read(api).await {
                Ok(()) if !object.is_suspended() => return Ok(()),
                Ok(()) if !object.is_suspended_by(action) => {
                    return Err(failed(format!(
                        "{object} is suspended, but no longer by this action: it was left so"
                    )));
                }
                Ok(()) => {
                    let change = object.resuming();
                    api.patch(&object.address.path(), &object.address, &change).await
                }
                Err(error) => Err(error),
            };
            match resumed {
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() >= deadline => {
                    return Err(failed(format!(
                        "{object} stays suspended, resume it by hand: {why}"
                    )));
                }
                // It is gone: there is nothing to resume.
                Err(why @ ApiError::NotFound { .. }) => return Err(uncertain(&why)),
                Err(_) => sleep(self.poll).await,
            }
        }
    }

    /// Resumes the objects that this action left suspended; none where there are none.
    async fn resume_left(&self, order: &Order) -> Result<Option<String>, Outcome> {
        // A job outside of Kubernetes has no namespace.
        if !is_name(&order.namespace) {
            return Ok(None);
        }
        let deadline = Instant::now() + self.resume_max;
        let (api, left) = loop {
            let searched = match Api::connect(self.config.as_ref(), self.timeout).await {
                Ok(api) => search(&api, order).await.map(|left| (api, left)),
                Err(error) => Err(error),
            };
            match searched {
                Ok(found) => break found,
                Err(why) if Instant::now() >= deadline => {
                    return Err(failed(format!(
                        "it is not known whether a job stays suspended: {why}"
                    )));
                }
                Err(_) => sleep(self.poll).await,
            }
        };
        let mut said = None;
        for object in left {
            said = Some(self.finish(&api, order, object).await?);
        }
        Ok(said)
    }
}

/// Every object of the order's namespace that its action has left suspended.
async fn search(api: &Api, order: &Order) -> Result<Vec<Object>, ApiError> {
    let mut found = Vec::new();
    for kind in KINDS {
        found.extend(search_kind(api, order, kind).await?);
    }
    Ok(found)
}

async fn search_kind(
    api: &Api,
    order: &Order,
    kind: &'static Kind,
) -> Result<Vec<Object>, ApiError> {
    let Some(version) = kind.version(api).await? else { return Ok(Vec::new()) };
    let collection = Collection::new(&version, kind, &order.namespace);
    match left_suspended(api, kind, &collection, &order.action, LEFT_MAX).await {
        // Without this right no object of the kind is suspended.
        Err(ApiError::Forbidden { .. } | ApiError::NotFound { .. }) => Ok(Vec::new()),
        found => found,
    }
}

/// Is the rank's pod gone, or at its end? An answer that is not known counts as no.
async fn is_gone(api: &Api, order: &Order) -> bool {
    if !is_name(&order.pod) {
        return true;
    }
    let collection = Collection::pods(&order.namespace);
    let address = Address { collection, name: order.pod.clone() };
    match api.get(&address.path(), &address).await {
        Ok(pod) => pod["metadata"]["uid"] != *order.pod_uid || has_ended(&pod),
        Err(error) => matches!(error, ApiError::NotFound { .. }),
    }
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Writes an event about the restart. A failure to write it changes nothing.
async fn announce(api: &Api, order: &Order, kind: &str, address: &Address, value: &Value) {
    let collection = Collection::events(&order.namespace);
    let seconds = memtape_disk::clock::now().wall_ns.div_euclid(1_000_000_000);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string();
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": "memtape.", "namespace": order.namespace },
        "involvedObject": {
            "apiVersion": address.collection.version,
            "kind": kind,
            "namespace": order.namespace,
            "name": address.name,
            "uid": value["metadata"]["uid"],
        },
        "reason": EVENT_REASON,
        "message": cut(&format!("{} ({})", order.sentence, order.incident), EVENT_BYTES_MAX),
        "type": "Warning",
        "source": { "component": "memtape" },
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    if let Err(why) = api.create(&collection.path(), &collection, &event).await {
        tracing::warn!("no event about the restart: {why}");
    }
}

/// The pod, for people.
fn shown(order: &Order) -> String {
    format!("{}/{}", order.namespace, order.pod)
}

#[cfg(test)]
mod tests;
