//! The objects of Kubernetes that a restart reads and changes.
//!
//! A pod belongs to a controller, which may belong to another: pod, Job, JobSet, TrainJob. The last
//! known controller is suspended and resumed, because a controller undoes what is done to its
//! objects. If Kueue queues it, its Workload is suspended: Kueue undoes changes.

use std::fmt;

use serde_json::{Value, json};

use crate::kubernetes::api::{Api, ApiError, is_name};

/// Label of an object that is suspended for a restart: the id of the action. It is taken off when
/// the object is resumed, so that a coordinator finds objects left suspended.
pub(super) const SUSPENDED_BY: &str = "memtape.io/suspended-by";

/// Annotation of an object that was restarted: the id of the last action.
pub(super) const ACTION: &str = "memtape.io/action";

/// Label of an object that Kueue queues.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Label of Kueue's Workload: the uid of the object it stands for.
const JOB_UID: &str = "kueue.x-k8s.io/job-uid";

/// Controllers above each other that are followed.
const OWNERS_MAX: usize = 8;

/// A kind of object that can be suspended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    group: &'static str,
    pub(super) name: &'static str,
    plural: &'static str,
    /// The field that suspends it, and its value then.
    field: &'static [&'static str],
    suspended: bool,
    /// Condition in the object's status that is true while it is suspended.
    condition: &'static str,
}

const fn kind(group: &'static str, name: &'static str, plural: &'static str) -> Kind {
    let field = &["spec", "suspend"];
    Kind { group, name, plural, field, suspended: true, condition: "Suspended" }
}

static JOB: Kind = kind("batch", "Job", "jobs");
static JOB_SET: Kind = kind("jobset.x-k8s.io", "JobSet", "jobsets");
static TRAIN_JOB: Kind = kind("trainer.kubeflow.org", "TrainJob", "trainjobs");
static PYTORCH_JOB: Kind = Kind {
    field: &["spec", "runPolicy", "suspend"],
    ..kind("kubeflow.org", "PyTorchJob", "pytorchjobs")
};
static WORKLOAD: Kind = Kind {
    field: &["spec", "active"],
    suspended: false,
    condition: "Evicted",
    ..kind("kueue.x-k8s.io", "Workload", "workloads")
};

/// All kinds that can be suspended.
pub(super) static KINDS: [&Kind; 5] = [&JOB, &JOB_SET, &TRAIN_JOB, &PYTORCH_JOB, &WORKLOAD];

impl Kind {
    /// The version of this kind that the server prefers; none where the kind is not installed.
    pub(super) async fn version(&self, api: &Api) -> Result<Option<String>, ApiError> {
        let group = self.group;
        match api.get(&format!("/apis/{group}"), &format!("API group {group}")).await {
            Ok(found) => Ok(text(&found["preferredVersion"]["groupVersion"])),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Path of the objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Collection {
    /// Group and version.
    pub(super) version: String,
    plural: &'static str,
    namespace: String,
}

impl Collection {
    pub(super) fn new(version: &str, kind: &Kind, namespace: &str) -> Self {
        let (version, namespace) = (version.to_string(), namespace.to_string());
        Self { version, plural: kind.plural, namespace }
    }

    pub(super) fn pods(namespace: &str) -> Self {
        Self { version: "v1".to_string(), plural: "pods", namespace: namespace.to_string() }
    }

    pub(super) fn events(namespace: &str) -> Self {
        Self { plural: "events", ..Self::pods(namespace) }
    }

    pub(super) fn path(&self) -> String {
        let Self { version, plural, namespace } = self;
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{namespace}/{plural}")
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.version.split_once('/').map(|(group, _)| format!(".{group}"));
        let group = group.unwrap_or_default();
        write!(formatter, "{}{group} in namespace {}", self.plural, self.namespace)
    }
}

/// The address of one object.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) collection: Collection,
    pub(super) name: String,
}

impl Address {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.collection.path(), self.name)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.name, self.collection)
    }
}

/// An object that can be suspended, in its last read state.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: &'static Kind,
    pub(super) address: Address,
    pub(super) value: Value,
}

impl Object {
    pub(super) fn is_suspended(&self) -> bool {
        let field = self.kind.field.iter().fold(&self.value, |value, name| &value[name]);
        field.as_bool() == Some(self.kind.suspended)
    }

    /// Does its controller report the object as suspended?
    pub(super) fn is_seen_suspended(&self) -> bool {
        let conditions = self.value["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == self.kind.condition && condition["status"] == "True"
        })
    }

    /// Was the object suspended by this action, and not resumed yet?
    pub(super) fn is_suspended_by(&self, action: &str) -> bool {
        self.is_suspended() && self.value["metadata"]["labels"][SUSPENDED_BY] == action
    }

    /// Was the object restarted by this action before?
    pub(super) fn is_restarted_by(&self, action: &str) -> bool {
        self.value["metadata"]["annotations"][ACTION] == action
    }

    /// Change that suspends the object, if it is unchanged since it was read.
    pub(super) fn suspending(&self, action: &str) -> Value {
        let mut change = self.change(self.kind.suspended);
        change["metadata"]["labels"] = json!({ SUSPENDED_BY: action });
        change["metadata"]["annotations"] = json!({ ACTION: action });
        change
    }

    /// Change that resumes the object, if it is unchanged since it was read.
    pub(super) fn resuming(&self) -> Value {
        let mut change = self.change(!self.kind.suspended);
        change["metadata"]["labels"] = json!({ SUSPENDED_BY: null });
        change
    }

    /// Change that removes the action's id, if the object is unchanged since it was read.
    pub(super) fn unmarking(&self) -> Value {
        let mut metadata = as_read(&self.value);
        metadata["labels"] = json!({ SUSPENDED_BY: null });
        metadata["annotations"] = json!({ ACTION: null });
        json!({ "metadata": metadata })
    }

    fn change(&self, value: bool) -> Value {
        let field = self.kind.field.iter().rev();
        let mut change = field.fold(Value::Bool(value), |inner, name| json!({ *name: inner }));
        change["metadata"] = as_read(&self.value);
        change
    }

    /// Reads it again.
    pub(super) async fn read(&mut self, api: &Api) -> Result<(), ApiError> {
        self.value = api.get(&self.address.path(), &self.address).await?;
        Ok(())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { collection, name } = &self.address;
        write!(formatter, "{} {}/{name}", self.kind.name, collection.namespace)
    }
}

/// Controllers that replace a deleted pod, by group and kind. A Workflow of Argo, for one, ends.
const REPLACING: [(&str, &str); 4] = [
    ("ray.io", "RayCluster"),
    ("apps", "StatefulSet"),
    ("apps", "ReplicaSet"),
    ("", "ReplicationController"),
];

/// The controllers of a pod.
#[derive(Debug)]
pub(super) enum Controller {
    /// A controller that can be suspended.
    Suspendable(Box<Object>),
    /// A controller that replaces a deleted pod, by kind and name.
    Replacing(String),
    /// The pod stands alone, or its controller may take a deleted pod for a failed one.
    None,
}

/// Why the controller of a pod is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{0} is another one now")]
    Replaced(Address),
    #[error("{0} is queued by Kueue, which has no Workload for it")]
    NoWorkload(Address),
    #[error("the controllers of the pod have no end")]
    Endless,
}

/// Follows the controllers of a pod to the last one that can be suspended.
pub(super) async fn controller(
    api: &Api,
    namespace: &str,
    pod: &Value,
) -> Result<Controller, OwnerError> {
    let mut found: Option<Object> = None;
    for _ in 0..OWNERS_MAX {
        let value = found.as_ref().map_or(pod, |object| &object.value);
        let Some(owner) = controller_reference(value) else {
            let Some(object) = found else { return Ok(Controller::None) };
            return Ok(Controller::Suspendable(Box::new(queued(api, object).await?)));
        };
        let version = text(&owner["apiVersion"]).unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let name = text(&owner["name"]).unwrap_or_default();
        let mut kinds = KINDS.into_iter();
        let kind = kinds.find(|kind| kind.group == group && owner["kind"] == kind.name);
        let Some(kind) = kind.filter(|_| is_name(&name)) else {
            let Some(object) = found else {
                let kind = text(&owner["kind"]).unwrap_or_default();
                let known = REPLACING.contains(&(group, kind.as_str()));
                return Ok(match known {
                    true => Controller::Replacing(format!("{kind} {name}")),
                    false => Controller::None,
                });
            };
            return Ok(Controller::Suspendable(Box::new(queued(api, object).await?)));
        };
        let collection = Collection::new(&version, kind, namespace);
        let mut object = Object { kind, address: Address { collection, name }, value: Value::Null };
        object.read(api).await?;
        if object.value["metadata"]["uid"] != owner["uid"] {
            return Err(OwnerError::Replaced(object.address));
        }
        found = Some(object);
    }
    Err(OwnerError::Endless)
}

/// The object, or the Workload by which Kueue decides whether it runs.
async fn queued(api: &Api, object: Object) -> Result<Object, OwnerError> {
    if !object.value["metadata"]["labels"][QUEUE].is_string() {
        return Ok(object);
    }
    let uid = text(&object.value["metadata"]["uid"]).unwrap_or_default();
    let Some(version) = WORKLOAD.version(api).await? else {
        return Err(OwnerError::NoWorkload(object.address));
    };
    let collection = Collection::new(&version, &WORKLOAD, &object.address.collection.namespace);
    let selector = format!("{JOB_UID}%3D{uid}");
    let items = api.list(&collection.path(), &selector, 2, &collection).await?;
    let mut items = items.into_iter();
    let is_its = |item: &Value| controller_reference(item).is_some_and(|of| of["uid"] == *uid);
    let Some(value) = items.find(is_its) else {
        return Err(OwnerError::NoWorkload(object.address));
    };
    let name = text(&value["metadata"]["name"]).unwrap_or_default();
    Ok(Object { kind: &WORKLOAD, address: Address { collection, name }, value })
}

/// Objects of a kind that this action has suspended and not resumed.
pub(super) async fn left_suspended(
    api: &Api,
    kind: &'static Kind,
    collection: &Collection,
    action: &str,
    items_max: usize,
) -> Result<Vec<Object>, ApiError> {
    let selector = format!("{SUSPENDED_BY}%3D{action}");
    let items = api.list(&collection.path(), &selector, items_max, collection).await?;
    let object = |value: Value| {
        let (collection, name) = (collection.clone(), text(&value["metadata"]["name"])?);
        is_name(&name).then_some(Object { kind, address: Address { collection, name }, value })
    };
    Ok(items.into_iter().filter_map(object).collect())
}

/// Preconditions that the object is unchanged since it was read.
pub(super) fn as_read(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({ "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"] })
}

fn controller_reference(value: &Value) -> Option<&Value> {
    let owners = value["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().find(|owner| owner["controller"] == true)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}
