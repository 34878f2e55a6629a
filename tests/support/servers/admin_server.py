"""The parts of Bigtable's administration that no emulator has: app profiles and permissions, on localhost.

It stores nothing and answers what a test tells it to. Points are never kept here.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2 import types
from google.iam.v1 import iam_policy_pb2


class AdminServer:
    """One instance with some tables, app profiles, and permissions on all of them.

    Attributes:
      families: versions of each family, by table.
      single: whether each app profile routes to one cluster with single-row transactions, by name; None for
        one without them.
      granted: the permissions that we have; None if even asking is forbidden.
      calls: the methods that were called, in turn.
    """

    def __init__(
        self,
        families: Mapping[str, Mapping[str, int]],
        profiles: Mapping[str, bool | None],
        granted: Sequence[str] | None,
    ) -> None:
        self.families, self.profiles, self.granted = families, profiles, granted
        self.calls: list[str] = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        tables = {
            "GetTable": self._handler("GetTable", types.GetTableRequest.pb(), self._table),
            "TestIamPermissions": self._handler(
                "TestIamPermissions", iam_policy_pb2.TestIamPermissionsRequest, self._permissions
            ),
        }
        instances = {
            "GetAppProfile": self._handler("GetAppProfile", types.GetAppProfileRequest.pb(), self._profile)
        }
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler("google.bigtable.admin.v2.BigtableTableAdmin", tables),
                grpc.method_handlers_generic_handler(
                    "google.bigtable.admin.v2.BigtableInstanceAdmin", instances
                ),
            ]
        )
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    @contextlib.contextmanager
    def running(self) -> Iterator[AdminServer]:
        """Serves."""
        self._server.start()
        try:
            yield self
        finally:
            self._server.stop(0).wait()

    def _handler(self, name: str, request: Any, answer: Any) -> grpc.RpcMethodHandler:
        def handle(asked: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append(name)
            return answer(asked, context)

        return grpc.unary_unary_rpc_method_handler(
            handle, request.FromString, lambda response: response.SerializeToString()
        )

    def _table(self, request: Any, context: grpc.ServicerContext) -> Any:
        short = request.name.split("/")[-1]
        if short not in self.families:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no table {short}")
        table = types.Table.pb()(name=request.name)
        for family, versions in self.families[short].items():
            table.column_families[family].gc_rule.max_num_versions = versions
        return table

    def _profile(self, request: Any, context: grpc.ServicerContext) -> Any:
        short = request.name.split("/")[-1]
        if short not in self.profiles:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no app profile {short}")
        profile = types.AppProfile.pb()(name=request.name)
        single = self.profiles[short]
        if single is False:
            profile.multi_cluster_routing_use_any.SetInParent()
        else:
            profile.single_cluster_routing.cluster_id = "one"
            profile.single_cluster_routing.allow_transactional_writes = bool(single)
        return profile

    def _permissions(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.granted is None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not even to ask")
        found = [one for one in request.permissions if one in (self.granted or ())]
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=found)
