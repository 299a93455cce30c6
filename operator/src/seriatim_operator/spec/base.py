"""What all kinds share: metadata, conditions, and the way from a manifest to a model and back.

Models are frozen: a reconcile works on what it observed, and what it wants is a new object. Fields that this version
does not know are left out when an object is read, so that an older operator lives beside a newer definition.
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
"""Conditions of one object; a bound that the API server needs to know."""

ConditionStatus = Literal["True", "False", "Unknown"]


class Model(BaseModel):
    """An object of a manifest: camelCase there, snake_case here."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """What the API server checks of the object as a whole."""

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
        """The class's schema, with its rules."""
        made = handler(schema)
        handler.resolve_ref_schema(made).update(with_rules({}, cls.RULES))
        return made

    def to_manifest(self) -> dict[str, Any]:
        """As it stands in a manifest, without what was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(Model):
    """Whose child an object is."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Model):
    """The part of an object's metadata that the operator looks at."""

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
        """Whether somebody has asked for its deletion."""
        return self.deletion_timestamp is not None


class Condition(Model):
    """One thing that can be true of an object, with the reason and since when."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    """What is said to be true or not."""
    status: ConditionStatus = "Unknown"
    """Whether it is."""
    reason: Annotated[str, Field(max_length=128)] = "NotReconciled"
    """Why, in one word of a closed list."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Why, for people, and what can be done."""
    last_transition_time: datetime
    """When `status` changed last."""
    observed_generation: int = 0
    """The generation of the spec that this speaks of."""


class Status(Model):
    """What every status has."""

    CONDITIONS: ClassVar[tuple[str, ...]] = ()
    """The types of condition that the kind has, in the order in which they are shown."""

    observed_generation: int = 0
    """The newest generation of the spec that the operator has acted on."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=CONDITION_TYPES_MAX), ListKeys(("type",))] = ()
    """What is true of the object now; one entry for each type."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, if it was ever reported."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition was reported as true."""
        found = self.condition(kind)
        return found is not None and found.status == "True"


@dataclass(frozen=True)
class Scale:
    """Where the sizes stand.

    Attributes:
        wanted: Path of the size that is wanted.
        actual: Path of the size that is.
        selector: Path of the selector of the pods, as text.
    """

    wanted: str
    actual: str
    selector: str


class Resource(Model):
    """An object of one of our kinds: metadata here, `spec` and `status` in the kind's own class."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    SINGULAR: ClassVar[str]
    SHORT_NAME: ClassVar[str]
    COLUMNS: ClassVar[tuple[Column, ...]] = (AGE,)
    """What `kubectl get` shows."""
    SCALE: ClassVar[Scale | None] = None
    """How `kubectl scale` and autoscalers change its size."""

    metadata: Metadata

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self:
        """The object that the API server gave.

        Raises:
            InvalidManifestError: It does not have the shape of the kind.
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
        """Where it lives."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """What it is called in Kubernetes."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """What it is called for ever: a second object of the same name has another."""
        return self.metadata.uid

    def owner_reference(self) -> dict[str, Any]:
        """What a child says of this object, its controller."""
        return {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": self.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def to_manifest(self) -> dict[str, Any]:
        """The whole object, with its kind."""
        return {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": self.KIND, **super().to_manifest()}
