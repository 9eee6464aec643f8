"""Drills: steady traffic through a running cluster, a fault, its repair, and a verdict.

    catalogue --steps--> conductor --verbs--> fabric --> brokers, links        catalogue.py, conductor.py
                             | events, each with its proof
    traffic --sends, deliveries, samples--> record                             traffic.py, record.py
                                              | when all is mended and drained
                                            verdict --> table, JSON, report    verdict.py; chaos.report

`run.py` has the order of events. The catalogue, the record's questions and the verdict do no I/O.
"""
