"""The messages of NVRx 0.7's nvhcd.proto, for machines without NVRx."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _INT32, _BOOL = 9, 5, 8
_file = descriptor_pb2.FileDescriptorProto(name="nvhcd.proto", package="nvhcd", syntax="proto3")
for _name, _fields in [
    ("HealthCheckRequest", [("args", _STRING)]),
    (
        "HealthCheckResponse",
        [("success", _BOOL), ("exit_code", _INT32), ("output", _STRING), ("error", _STRING)],
    ),
]:
    _message = _file.message_type.add(name=_name)
    for _number, (_field, _kind) in enumerate(_fields, 1):
        _label = 3 if _field == "args" else 1
        _message.field.add(name=_field, number=_number, type=_kind, label=_label)
_pool = descriptor_pool.Default()
_pool.Add(_file) if hasattr(_pool, "Add") else _pool.AddSerializedFile(_file.SerializeToString())


def _class(name):
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"nvhcd.{name}"))


HealthCheckRequest = _class("HealthCheckRequest")
HealthCheckResponse = _class("HealthCheckResponse")
