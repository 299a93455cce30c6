"""What all kinds share: metadata, conditions, and the conversion between manifests and models.

Models are frozen: a pass reads what it observed, and makes a new object for what it wants. When an object is read,
fields that this version does not know are left out. So an older operator can work with a newer definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .columns import AGE, Column
from .errors import InvalidManifestError
from .rules import ListKeys, Rule, with_rules

API_GROUP: Final = "seriatim.dev"
API_VERSION: Final = "v1alpha1"
CATEGORY: Final = "seriatim"

CONDITION_TYPES_MAX: Final = 16
"""The most conditions that one object may have. The API server needs the limit to estimate what a rule costs."""

ConditionStatus = Literal["True", "False", "Unknown"]


class Model(BaseModel):
    """An object in a manifest. Its fields are camelCase in the manifest and snake_case here."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """Rules that the API server checks on the object as a whole."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="ignore",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Give pydantic the class's schema with its rules."""
        made = handler(schema)
        handler.resolve_ref_schema(made).update(with_rules({}, cls.RULES))
        return made

    def to_manifest(self) -> dict[str, Any]:
        """The object as a manifest has it, without the fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(Model):
    """The object's owner, as Kubernetes has it in the metadata."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Model):
    """The part of an object's metadata that the operator reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def is_deleted(self) -> bool:
        """Whether the deletion of the object has begun."""
        return self.deletion_timestamp is not None


class Condition(Model):
    """A statement about the object: whether it is true, why, and since when."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    """The statement, in one word."""
    status: ConditionStatus = "Unknown"
    """Whether the statement is true."""
    reason: Annotated[str, Field(max_length=128)] = "NotReconciled"
    """Why, in one word of a closed list."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Why, in a sentence for humans, and what to do."""
    last_transition_time: datetime
    """When `status` or `reason` changed last."""
    observed_generation: int = 0
    """The generation of the spec for which the condition was decided."""


class Status(Model):
    """The fields that every status has."""

    CONDITIONS: ClassVar[tuple[str, ...]] = ()
    """The types of condition that the kind has, in the order in which they are shown."""

    observed_generation: int = 0
    """The newest generation of the spec on which the operator has acted."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=CONDITION_TYPES_MAX), ListKeys(("type",))] = ()
    """The conditions of the object: one entry for each type."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, or None if it was never reported."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition was reported as true."""
        found = self.condition(kind)
        return found is not None and found.status == "True"


@dataclass(frozen=True)
class Scale:
    """The paths that `kubectl scale` and autoscalers use.

    Attributes:
        wanted: Path of the desired size.
        actual: Path of the present size.
        selector: Path of the selector of the pods, which is a text.
    """

    wanted: str
    actual: str
    selector: str


class Resource(Model):
    """An object of one of our kinds. The kind's own class adds `spec` and `status`."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    SINGULAR: ClassVar[str]
    SHORT_NAME: ClassVar[str]
    COLUMNS: ClassVar[tuple[Column, ...]] = (AGE,)
    """The columns that `kubectl get` shows."""
    SCALE: ClassVar[Scale | None] = None
    """The paths by which `kubectl scale` and autoscalers change its size; None if it has no size."""

    metadata: Metadata

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self:
        """Make a model of an object that the API server gave.

        Raises:
            InvalidManifestError: The object does not have the shape of the kind.
        """
        try:
            return cls.model_validate(dict(manifest))
        except ValidationError as exc:
            metadata = manifest.get("metadata")
            metadata = metadata if isinstance(metadata, Mapping) else {}
            problems = tuple(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
            raise InvalidManifestError(
                cls.KIND, str(metadata.get("namespace", "")), str(metadata.get("name", "")), problems
            ) from exc

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """The object's name in Kubernetes."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The object's UID. Another object that is made later with the same name has another UID."""
        return self.metadata.uid

    def owner_reference(self) -> dict[str, Any]:
        """The owner reference that a child of this object gets. It names this object as its controller."""
        return {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": self.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def to_manifest(self) -> dict[str, Any]:
        """The whole object as a manifest, with API version and kind."""
        return {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": self.KIND, **super().to_manifest()}
